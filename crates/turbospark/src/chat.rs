//! From messages and images to a prompt.

use std::path::Path;

use base64::Engine as _;
use serde_json::{Map, Value};
use turbospark_text::{
    Content, ImageSource, Message, Part, RenderOptions, Role, Segment, VideoWrap, encode_chat, encode_segments,
    expand_media, media,
};
use turbospark_vision::{Grid, Picture, rope_index};

use crate::{Error, Model, Prompt, PromptParts, Result, Visual, VisualSpan};

/// Gets the bytes that an image's address stands for. What addresses are allowed is decided here.
pub trait ImageLoader {
    /// The file's bytes, or why not.
    fn load(&self, source: &ImageSource) -> Result<Vec<u8>, String>;
}

/// Takes `data:` URIs and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataUris;

impl ImageLoader for DataUris {
    fn load(&self, source: &ImageSource) -> Result<Vec<u8>, String> {
        match source.url.strip_prefix("data:") {
            Some(rest) => data_uri(rest),
            None => Err("only data: URIs are accepted here".into()),
        }
    }
}

/// Takes `data:` URIs, `file:` URLs and paths: for a program that a person runs, never for a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFiles;

impl ImageLoader for LocalFiles {
    fn load(&self, source: &ImageSource) -> Result<Vec<u8>, String> {
        let url = source.url.as_str();
        if let Some(rest) = url.strip_prefix("data:") {
            return data_uri(rest);
        }
        let path = match url.split_once("://") {
            Some(("file", path)) => path,
            Some((scheme, _)) => {
                return Err(format!("{scheme}: addresses are not fetched; save the picture and give its path"));
            }
            None => url,
        };
        std::fs::read(path).map_err(|e| format!("{path}: {e}"))
    }
}

/// The bytes of what follows `data:`.
fn data_uri(rest: &str) -> Result<Vec<u8>, String> {
    let Some((kind, data)) = rest.split_once(',') else {
        return Err("a data: URI needs a comma before its data".into());
    };
    if !kind.split(';').any(|p| p.eq_ignore_ascii_case("base64")) {
        return Err("a data: URI of a picture must be base64".into());
    }
    let clean: Vec<u8> = data.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let engine = base64::engine::GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        base64::engine::GeneralPurposeConfig::new()
            .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
    );
    engine.decode(clean).map_err(|e| format!("the data: URI is no base64: {e}"))
}

/// How messages become a prompt.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// Functions that the model may call, as OpenAI lists them.
    pub tools: Option<Value>,
    /// Switches of the checkpoint's template, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// End with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions { tools: None, template_kwargs: Map::new(), add_generation_prompt: true }
    }
}

impl Model {
    /// The prompt of a conversation in OpenAI's form, its images fetched by `loader`.
    ///
    /// # Errors
    /// An image that can't be loaded or decoded, by its place in the request; messages that the template refuses.
    pub fn prompt_from_messages(
        &self,
        messages: &[Message],
        loader: &dyn ImageLoader,
        options: &ChatOptions,
    ) -> Result<Prompt> {
        let mut pictures = Vec::new();
        for (i, source) in media(messages).0.into_iter().enumerate() {
            let number = i + 1;
            let bytes = loader.load(source).map_err(|message| Error::ImageAddress { number, message })?;
            let limit = |n: Option<u64>| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            pictures.push(self.picture(number, &bytes, limit(source.min_pixels), limit(source.max_pixels))?);
        }
        self.prompt_with_pictures(messages, pictures, options)
    }

    /// The prompt of a conversation whose images, in order, are already sized.
    ///
    /// # Errors
    /// As [`Model::prompt_from_messages`].
    pub fn prompt_with_pictures(
        &self,
        messages: &[Message],
        pictures: Vec<Picture>,
        options: &ChatOptions,
    ) -> Result<Prompt> {
        if !media(messages).1.is_empty() {
            return Err(Error::Unsupported("video input is not supported yet; send single frames as images".into()));
        }
        let for_tools = self.inner.tool_template.as_ref().filter(|_| options.tools.is_some());
        let Some(template) = for_tools.or(self.inner.template.as_ref()) else {
            return Err(Error::Unsupported(
                "this checkpoint has no chat template (chat_template.jinja); prompts can only be built from ids".into(),
            ));
        };
        let render = RenderOptions {
            add_generation_prompt: options.add_generation_prompt,
            tools: options.tools.clone(),
            template_kwargs: options.template_kwargs.clone(),
            ..Default::default()
        };
        let tokenizer = &self.inner.tokenizer;
        let segments: Vec<Segment> = match self.placeholders() {
            Some(placeholders) => {
                let (segments, _) = encode_chat(template, tokenizer, &placeholders, messages, &render)?;
                let tokens: Vec<usize> = pictures.iter().map(Picture::tokens).collect();
                expand_media(&segments, &placeholders, &tokens, &[], VideoWrap::Single)?
            }
            None if pictures.is_empty() => template.render(tokenizer, messages, &render)?,
            None => return Err(turbospark_models::ModelError::NoVision.into()),
        };
        let encoded = encode_segments(tokenizer, &segments)?;
        let visuals: Vec<Visual> = pictures.into_iter().map(Visual::from).collect();
        let spans = encoded.spans.iter().map(|s| VisualSpan { visual: s.index, first_row: 0, range: s.range.clone() });
        let spans = spans.collect();
        self.prompt_from_ids(encoded.ids, visuals, spans)
    }

    /// The prompt of a text to be continued, without a template: it begins as the tokenizer says, and nothing in it
    /// is a control token.
    ///
    /// # Errors
    /// A text that can't be tokenised, or of no tokens.
    pub fn prompt_from_text(&self, text: &str) -> Result<Prompt> {
        let ids = self.inner.tokenizer.encode_plain_prompt(text)?;
        self.prompt_from_ids(ids, Vec::new(), Vec::new())
    }

    /// A prompt of ids with images at the given spans (no clips); positions are worked out here.
    ///
    /// # Errors
    /// What does not fit, by image.
    pub fn prompt_from_ids(&self, ids: Vec<u32>, visuals: Vec<Visual>, spans: Vec<VisualSpan>) -> Result<Prompt> {
        let limits = self.prompt_limits();
        let mut modalities = vec![turbospark_vision::Modality::Text; ids.len()];
        for span in &spans {
            if let Some(run) = modalities.get_mut(span.range.clone()) {
                run.fill(turbospark_vision::Modality::Image);
            }
        }
        let grids: Vec<Grid> = visuals.iter().map(|v| v.grid).collect();
        let positions = rope_index(&modalities, &grids, &[], limits.merge_size)
            .map_err(|e| Error::Unsupported(format!("positions of the prompt: {e}")))?;
        let parts = PromptParts { ids, visuals, spans, positions: positions.thw, rope_delta: positions.rope_delta };
        Ok(Prompt::new(parts, &limits)?)
    }
}

/// Which side of the conversation a part belongs to, and what it is.
enum Piece {
    Text(String),
    Image(Box<Picture>),
}

/// Builds a prompt turn by turn, part by part. Parts stay in the order given.
///
/// The first error is kept and returned by [`build`](PromptBuilder::build).
pub struct PromptBuilder<'m> {
    model: &'m Model,
    turns: Vec<(Role, Vec<Piece>)>,
    images: usize,
    options: ChatOptions,
    error: Option<Error>,
}

impl<'m> PromptBuilder<'m> {
    pub(crate) fn new(model: &'m Model) -> Self {
        PromptBuilder { model, turns: Vec::new(), images: 0, options: ChatOptions::default(), error: None }
    }

    fn push(&mut self, role: Role, piece: Piece) {
        match self.turns.last_mut() {
            Some((last, pieces)) if *last == role => pieces.push(piece),
            _ => self.turns.push((role, vec![piece])),
        }
    }

    /// What the model should be, before the first turn.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.push(Role::System, Piece::Text(text.into()));
        self
    }

    /// Text of the user's turn.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.push(Role::User, Piece::Text(text.into()));
        self
    }

    /// What the model answered in an earlier turn.
    pub fn assistant(mut self, text: impl Into<String>) -> Self {
        self.push(Role::Assistant, Piece::Text(text.into()));
        self
    }

    /// An image of the user's turn, as the bytes of its file.
    pub fn image(mut self, bytes: &[u8]) -> Self {
        self.images += 1;
        match self.model.picture(self.images, bytes, None, None) {
            Ok(picture) => self.push(Role::User, Piece::Image(Box::new(picture))),
            Err(e) => self.error = self.error.or(Some(e)),
        }
        self
    }

    /// An image of the user's turn that is already sized.
    pub fn picture(mut self, picture: Picture) -> Self {
        self.images += 1;
        self.push(Role::User, Piece::Image(Box::new(picture)));
        self
    }

    /// An image of the user's turn, by path.
    pub fn image_file(self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        match std::fs::read(path) {
            Ok(bytes) => self.image(&bytes),
            Err(source) => {
                let error = Error::Io { path: path.display().to_string(), source };
                PromptBuilder { error: self.error.or(Some(error)), ..self }
            }
        }
    }

    /// Tools and switches for the template.
    pub fn options(mut self, options: ChatOptions) -> Self {
        self.options = options;
        self
    }

    /// The prompt. A checkpoint without a template, which was not made for conversations, goes on from the text itself
    /// where that is all there is.
    ///
    /// # Errors
    /// The first image that could not be read, else what the template or the parts refuse.
    pub fn build(self) -> Result<Prompt> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if let (false, [(Role::User, parts)]) = (self.model.has_chat_template(), self.turns.as_slice())
            && let [Piece::Text(text)] = parts.as_slice()
        {
            return self.model.prompt_from_text(text);
        }
        let mut pictures = Vec::new();
        let messages: Vec<Message> = self
            .turns
            .into_iter()
            .map(|(role, pieces)| {
                let parts: Vec<Part> = pieces
                    .into_iter()
                    .map(|piece| match piece {
                        Piece::Text(text) => Part::Text(text),
                        Piece::Image(picture) => {
                            pictures.push(*picture);
                            Part::Image(ImageSource::default())
                        }
                    })
                    .collect();
                let content = match parts.as_slice() {
                    [Part::Text(text)] => Content::from(text.as_str()),
                    _ => Content::from(parts),
                };
                Message::new(role, content)
            })
            .collect();
        self.model.prompt_with_pictures(&messages, pictures, &self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(url: &str) -> Result<Vec<u8>, String> {
        DataUris.load(&ImageSource { url: url.into(), ..Default::default() })
    }

    #[test]
    fn data_uris_are_decoded_and_nothing_else_is_taken() {
        assert_eq!(load("data:image/png;base64,aGk=").unwrap(), b"hi");
        assert_eq!(load("data:image/png;base64,aG k").unwrap(), b"hi");
        assert!(load("data:image/png,hi").unwrap_err().contains("base64"));
        assert!(load("data:;base64,%%%").unwrap_err().contains("no base64"));
        assert!(load("file:///etc/passwd").unwrap_err().contains("only data:"));
        let https = ImageSource { url: "https://example.com/a.png".into(), ..Default::default() };
        assert!(LocalFiles.load(&https).unwrap_err().contains("not fetched"));
    }
}
