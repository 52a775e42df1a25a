//! Chat messages as OpenAI's API spells them, and as the checkpoints' own examples do.
//!
//! Parts keep their order. A kind of part that is not supported is refused by its name: an answer that
//! silently left something out would look like any other.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::error::TextError;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Instructions. OpenAI's newer name for it, `developer`, is accepted.
    #[serde(alias = "developer")]
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name the template sees.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One message. Keys that are not listed here are ignored.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; an absent or null content is an empty text.
    #[serde(default, deserialize_with = "null_is_default")]
    pub content: Content,
    /// A name of the speaker, or of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The calls an assistant made.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// What an assistant thought; the template decides whether it is shown again.
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl Message {
    /// A message with this content and nothing else.
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Message {
            role,
            content: content.into(),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            reasoning_content: None,
        }
    }
}

/// A message's content.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Content {
    /// One string.
    Text(String),
    /// Texts, images and videos in the order given.
    Parts(Vec<Part>),
}

impl Default for Content {
    fn default() -> Self {
        Content::Text(String::new())
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Content::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Content::Text(text)
    }
}

impl From<Vec<Part>> for Content {
    fn from(parts: Vec<Part>) -> Self {
        Content::Parts(parts)
    }
}

/// One part of a content.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text(String),
    /// An image.
    Image(ImageSource),
    /// A video.
    Video(VideoSource),
}

/// Where an image comes from. What addresses are allowed is the caller's decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSource {
    /// A data URI, a file or a web address.
    pub url: String,
    /// Fewest pixels after sizing, where the request sets it.
    pub min_pixels: Option<u64>,
    /// Most pixels after sizing, where the request sets it.
    pub max_pixels: Option<u64>,
}

/// Where a video comes from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum VideoSource {
    /// One file.
    Url(String),
    /// Frames that were already sampled.
    Frames(Vec<String>),
}

/// A call that an assistant made.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct ToolCall {
    /// The call's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function called.
    pub function: ToolCallFunction,
}

/// Name and arguments of a call.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct ToolCallFunction {
    /// The function's name.
    pub name: String,
    /// A JSON object, or, as OpenAI sends it, a string that holds one.
    #[serde(default)]
    pub arguments: Value,
}

/// All images and all videos of a conversation, each in the order of their placeholders.
pub fn media(messages: &[Message]) -> (Vec<&ImageSource>, Vec<&VideoSource>) {
    let (mut images, mut videos) = (Vec::new(), Vec::new());
    for message in messages {
        let Content::Parts(parts) = &message.content else {
            continue;
        };
        for part in parts {
            match part {
                Part::Text(_) => {}
                Part::Image(image) => images.push(image),
                Part::Video(video) => videos.push(video),
            }
        }
    }
    (images, videos)
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl TryFrom<Value> for Content {
    type Error = TextError;

    fn try_from(value: Value) -> Result<Self, TextError> {
        match value {
            Value::String(text) => Ok(Content::Text(text)),
            Value::Array(parts) => {
                let parts = parts.into_iter().enumerate();
                let parts = parts.map(|(index, part)| parse_part(index, part));
                parts.collect::<Result<_, _>>().map(Content::Parts)
            }
            _ => Err(TextError::Message("content must be a string or a list of parts".into())),
        }
    }
}

fn parse_part(index: usize, part: Value) -> Result<Part, TextError> {
    let bad = |message: String| TextError::Message(format!("content part {index}: {message}"));
    let Value::Object(mut part) = part else {
        return Err(bad("not an object".into()));
    };
    let kind = match part.remove("type") {
        Some(Value::String(kind)) => kind,
        Some(_) => return Err(bad("\"type\" is not a string".into())),
        None => return Err(bad("\"type\" is missing".into())),
    };
    match kind.as_str() {
        "text" | "input_text" => match part.remove("text") {
            Some(Value::String(text)) => Ok(Part::Text(text)),
            _ => Err(bad("\"text\" must be a string".into())),
        },
        "image_url" | "image" | "input_image" => {
            let source = take_source(&mut part, &["image_url", "image", "url"]);
            let (url, inner) = match source {
                Some(Value::String(url)) => (url, Map::new()),
                Some(Value::Object(mut inner)) => match inner.remove("url") {
                    Some(Value::String(url)) => (url, inner),
                    _ => return Err(bad("the image's \"url\" must be a string".into())),
                },
                _ => return Err(bad("the image has no address".into())),
            };
            let pixels = |name: &str| match part.get(name).or_else(|| inner.get(name)) {
                None | Some(Value::Null) => Ok(None),
                Some(value) => value
                    .as_u64()
                    .map(Some)
                    .ok_or_else(|| bad(format!("{name:?} is {value}, expected a number of pixels"))),
            };
            Ok(Part::Image(ImageSource { min_pixels: pixels("min_pixels")?, max_pixels: pixels("max_pixels")?, url }))
        }
        "video_url" | "video" => match take_source(&mut part, &["video_url", "video", "url"]) {
            Some(Value::String(url)) => Ok(Part::Video(VideoSource::Url(url))),
            Some(Value::Object(mut inner)) => match inner.remove("url") {
                Some(Value::String(url)) => Ok(Part::Video(VideoSource::Url(url))),
                _ => Err(bad("the video's \"url\" must be a string".into())),
            },
            Some(Value::Array(frames)) => {
                let frames = frames.into_iter().map(|frame| match frame {
                    Value::String(url) => Ok(url),
                    _ => Err(bad("a video frame must be a string".into())),
                });
                let frames = frames.collect::<Result<_, _>>()?;
                Ok(Part::Video(VideoSource::Frames(frames)))
            }
            _ => Err(bad("the video has no address".into())),
        },
        other => Err(bad(format!("type {other:?} is not supported, only text, image_url, image, video_url and video"))),
    }
}

fn take_source(part: &mut Map<String, Value>, names: &[&str]) -> Option<Value> {
    names.iter().find_map(|&name| part.remove(name))
}

impl From<Content> for Value {
    fn from(content: Content) -> Self {
        match content {
            Content::Text(text) => Value::String(text),
            Content::Parts(parts) => parts.into_iter().map(part_value).collect(),
        }
    }
}

fn part_value(part: Part) -> Value {
    match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(image) => {
            let mut value = json!({"type": "image_url", "image_url": {"url": image.url}});
            let limits = [("min_pixels", image.min_pixels), ("max_pixels", image.max_pixels)];
            for (name, limit) in limits {
                if let Some(limit) = limit {
                    value[name] = limit.into();
                }
            }
            value
        }
        Part::Video(VideoSource::Url(url)) => {
            json!({"type": "video_url", "video_url": {"url": url}})
        }
        Part::Video(VideoSource::Frames(frames)) => json!({"type": "video", "video": frames}),
    }
}
