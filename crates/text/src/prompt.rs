//! From segments to ids: where images and videos stand, and how many tokens each takes.
//!
//! The reference expands placeholders in the text and tokenises afterwards. Pads are control tokens, so
//! for images that equals an expansion of ids. A video's time labels are plain text and join their
//! neighbours, so videos are expanded in the segments, before any text is encoded.

use std::ops::Range;

use crate::error::{Result, TextError};
use crate::message::{Message, media};
use crate::template::{ChatTemplate, RenderOptions};
use crate::tokenizer::Tokenizer;

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A control token that the template wrote.
    Control(u32),
    /// Text in which nothing is a control token. It is encoded in one piece.
    Plain(String),
    /// The tokens of one image, or of one group of video frames.
    Pads {
        /// The pad's id.
        id: u32,
        /// How many.
        tokens: usize,
        /// Image or video.
        modality: Modality,
        /// Which image or video, from 0.
        index: usize,
    },
}

/// What a token stands for; the numbers are the reference's `mm_token_type_ids`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Modality {
    /// Text, markers and time labels.
    Text = 0,
    /// An image's rows.
    Image = 1,
    /// A video's rows.
    Video = 2,
}

/// Ids of the tokens around images and videos, from `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placeholders {
    /// `image_token_id`.
    pub image: u32,
    /// `video_token_id`.
    pub video: u32,
    /// `vision_start_token_id`.
    pub vision_start: u32,
    /// `vision_end_token_id`.
    pub vision_end: u32,
}

/// One temporal group of a video: frames that share their rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoGroup {
    /// Mean time of the group's first and last frame.
    pub seconds: f64,
    /// Merged tokens.
    pub tokens: usize,
}

impl VideoGroup {
    /// The text before the group. One decimal of the exact binary value, ties to even: 0.25 is `0.2`.
    fn label(self) -> String {
        format!("<{:.1} seconds>", self.seconds)
    }
}

/// What becomes of the markers that the template puts around a video.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VideoWrap {
    /// They go: only the groups are wrapped.
    #[default]
    Single,
    /// They stay around the wrapped groups.
    Nested,
}

/// A prompt with one pad for each image and video.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedPrompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Where the single pad of each image is.
    pub image_slots: Vec<usize>,
    /// Where the single pad of each video is.
    pub video_slots: Vec<usize>,
}

/// A prompt as the model takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpandedPrompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// [`Modality`] of every token.
    pub modality: Vec<u8>,
    /// The runs of pads, in order.
    pub spans: Vec<MediaSpan>,
}

/// A run of pads: one image, or one group of a video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaSpan {
    /// Image or video.
    pub modality: Modality,
    /// Which image or video, from 0.
    pub index: usize,
    /// Its tokens.
    pub range: Range<usize>,
}

/// Renders and encodes messages; each image and video is one pad. The template must have placed
/// exactly as many as the messages hold.
pub fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    placeholders: &Placeholders,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<(Vec<Segment>, EncodedPrompt)> {
    let segments = template.render(tokenizer, messages, options)?;
    let (images, videos) = media(messages);
    let counts = [("image", placeholders.image, images.len()), ("video", placeholders.video, videos.len())];
    for (kind, id, parts) in counts {
        let placeholders = count(&segments, id);
        if placeholders != parts {
            return Err(TextError::PlaceholderCount { kind, placeholders, parts });
        }
    }
    let ids = encode_segments(tokenizer, &segments)?.ids;
    let prompt = slots(ids, placeholders);
    Ok((segments, prompt))
}

/// Finds the pads in ids that hold one for each image and video.
pub fn slots(ids: Vec<u32>, placeholders: &Placeholders) -> EncodedPrompt {
    let find = |pad: u32| {
        let all = ids.iter().enumerate();
        all.filter(|&(_, &id)| id == pad).map(|(at, _)| at).collect()
    };
    EncodedPrompt { image_slots: find(placeholders.image), video_slots: find(placeholders.video), ids }
}

fn count(segments: &[Segment], id: u32) -> usize {
    let is_pad = |segment: &&Segment| **segment == Segment::Control(id);
    segments.iter().filter(is_pad).count()
}

/// Gives the i-th image placeholder its number of tokens and the i-th video placeholder its groups.
pub fn expand_media(
    segments: &[Segment],
    placeholders: &Placeholders,
    images: &[usize],
    videos: &[Vec<VideoGroup>],
    wrap: VideoWrap,
) -> Result<Vec<Segment>> {
    let counts = [("image", placeholders.image, images.len()), ("video", placeholders.video, videos.len())];
    for (kind, id, given) in counts {
        let placeholders = count(segments, id);
        if placeholders != given {
            return Err(TextError::ExpansionCount { kind, placeholders, given });
        }
    }
    if let Some(index) = images.iter().position(|&tokens| tokens == 0) {
        return Err(TextError::EmptyMedia { kind: "image", index });
    }
    let empty = |groups: &Vec<VideoGroup>| groups.is_empty() || groups.iter().any(|group| group.tokens == 0);
    if let Some(index) = videos.iter().position(empty) {
        return Err(TextError::EmptyMedia { kind: "video", index });
    }

    let (start, end) = (Segment::Control(placeholders.vision_start), Segment::Control(placeholders.vision_end));
    let (mut images, mut videos) = (images.iter().enumerate(), videos.iter().enumerate());
    let mut out: Vec<Segment> = Vec::with_capacity(segments.len());
    let mut rest = segments.iter().peekable();
    while let Some(segment) = rest.next() {
        match segment {
            Segment::Control(id) if *id == placeholders.image => {
                out.extend(images.next().map(|(index, &tokens)| Segment::Pads {
                    id: *id,
                    tokens,
                    modality: Modality::Image,
                    index,
                }));
            }
            Segment::Control(id) if *id == placeholders.video => {
                let wrapped = out.last() == Some(&start) && rest.peek() == Some(&&end);
                if wrap == VideoWrap::Single && wrapped {
                    out.pop();
                    rest.next();
                }
                if let Some((index, groups)) = videos.next() {
                    for group in groups {
                        out.push(Segment::Plain(group.label()));
                        out.push(start.clone());
                        out.push(Segment::Pads { id: *id, tokens: group.tokens, modality: Modality::Video, index });
                        out.push(end.clone());
                    }
                }
            }
            other => out.push(other.clone()),
        }
    }
    Ok(joined(out))
}

/// Joins neighbouring plain texts, which are one unit to the tokenizer.
fn joined(segments: Vec<Segment>) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::with_capacity(segments.len());
    for segment in segments {
        match (out.last_mut(), segment) {
            (Some(Segment::Plain(before)), Segment::Plain(text)) => before.push_str(&text),
            (_, segment) => out.push(segment),
        }
    }
    out
}

/// Encodes segments.
pub fn encode_segments(tokenizer: &Tokenizer, segments: &[Segment]) -> Result<ExpandedPrompt> {
    let mut prompt = ExpandedPrompt::default();
    // Some tokenizers write a space before the first word of a text, but not behind a control token.
    let mut begins = true;
    for segment in segments {
        match segment {
            Segment::Control(id) => prompt.ids.push(*id),
            Segment::Plain(text) => tokenizer.append_text(text, begins, &mut prompt.ids)?,
            &Segment::Pads { id, tokens, modality, index } => prompt.push_pads(id, tokens, modality, index),
        }
        begins &= *segment == Segment::Plain(String::new());
        prompt.modality.resize(prompt.ids.len(), Modality::Text as u8);
    }
    Ok(prompt)
}

impl ExpandedPrompt {
    fn push_pads(&mut self, id: u32, tokens: usize, modality: Modality, index: usize) {
        let start = self.ids.len();
        let end = start + tokens;
        self.modality.resize(start, Modality::Text as u8);
        self.ids.resize(end, id);
        self.modality.resize(end, modality as u8);
        self.spans.push(MediaSpan { modality, index, range: start..end });
    }
}

/// Expands ids: the pad at the i-th of `slots` becomes `tokens[i]` copies. For images this equals
/// [`expand_media`].
pub fn expand(ids: &[u32], slots: &[usize], tokens: &[usize], modality: Modality) -> Result<ExpandedPrompt> {
    if slots.len() != tokens.len() {
        return Err(TextError::ExpansionCount {
            kind: if modality == Modality::Video { "video" } else { "image" },
            placeholders: slots.len(),
            given: tokens.len(),
        });
    }
    let mut prompt = ExpandedPrompt::default();
    let mut from = 0;
    for (index, (&slot, &tokens)) in slots.iter().zip(tokens).enumerate() {
        let len = ids.len();
        let before = ids.get(from..slot).ok_or(TextError::Slot { slot, len })?;
        let pad = *ids.get(slot).ok_or(TextError::Slot { slot, len })?;
        prompt.ids.extend_from_slice(before);
        prompt.push_pads(pad, tokens, modality, index);
        from = slot + 1;
    }
    prompt.ids.extend_from_slice(&ids[from..]);
    prompt.modality.resize(prompt.ids.len(), Modality::Text as u8);
    Ok(prompt)
}
