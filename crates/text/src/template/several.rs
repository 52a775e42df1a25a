//! The chat templates of a checkpoint, which may keep several and in several places.

use serde_json::Value;

use super::ChatTemplate;
use crate::error::{Result, TextError};

/// What a single template is called.
const DEFAULT: &str = "default";
/// The one that is taken where tools are given.
const FOR_TOOLS: &str = "tool_use";

/// Where a checkpoint may keep its chat templates, in the order in which they are believed: a template in a file of its
/// own is what people edit, and the other places are older.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateTexts<'a> {
    /// `chat_template.jinja`.
    pub jinja: Option<&'a str>,
    /// Name and text of each `additional_chat_templates/NAME.jinja`; they belong to `chat_template.jinja`.
    pub additional: &'a [(String, String)],
    /// `chat_template.json`.
    pub json: Option<&'a str>,
    /// `processor_config.json`.
    pub processor_config: Option<&'a str>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a str>,
}

/// All chat templates of a checkpoint by name.
#[derive(Clone, Debug, Default)]
pub struct ChatTemplates {
    /// Names and sources place by place.
    places: Vec<Vec<(String, String)>>,
}

impl ChatTemplates {
    /// Finds the templates; none is parsed yet.
    ///
    /// # Errors
    /// A configuration that is no JSON, or whose `chat_template` is neither a text nor a list of named ones.
    pub fn read(texts: &TemplateTexts<'_>) -> Result<Self> {
        let own = texts.jinja.map(|source| (DEFAULT.to_owned(), source.to_owned()));
        let mut places = vec![own.into_iter().chain(texts.additional.iter().cloned()).collect()];
        for (file, text) in [
            ("chat_template.json", texts.json),
            ("processor_config.json", texts.processor_config),
            ("tokenizer_config.json", texts.tokenizer_config),
        ] {
            places.push(within(file, text)?);
        }
        Ok(ChatTemplates { places })
    }

    /// The template for messages without tools; `None` where the checkpoint has no template at all.
    ///
    /// # Errors
    /// A template that can't be parsed; named templates of which none is called `default`.
    pub fn own(&self) -> Result<Option<ChatTemplate>> {
        match self.named(DEFAULT)? {
            None if self.iter().next().is_some() => Err(TextError::Template(format!(
                "the checkpoint has none named {DEFAULT:?}, but {}; choose one of them by its name",
                self.names()
            ))),
            found => Ok(found),
        }
    }

    /// The template for messages with tools, where the place of [`ChatTemplates::own`] has another for them.
    ///
    /// # Errors
    /// A template that can't be parsed.
    pub fn for_tools(&self) -> Result<Option<ChatTemplate>> {
        let place = self.places.iter().find(|place| find(place, DEFAULT).is_some());
        place.and_then(|place| find(place, FOR_TOOLS)).map(ChatTemplate::new).transpose()
    }

    /// The template of that name, of the first place that has one.
    ///
    /// # Errors
    /// A template that can't be parsed.
    pub fn named(&self, name: &str) -> Result<Option<ChatTemplate>> {
        self.places.iter().find_map(|place| find(place, name)).map(ChatTemplate::new).transpose()
    }

    /// Each name once with the source that it stands for.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let earlier = |until: usize, name: &str| self.places[..until].iter().any(|place| find(place, name).is_some());
        self.places.iter().enumerate().flat_map(move |(i, place)| {
            let all = place.iter().map(|(name, source)| (name.as_str(), source.as_str()));
            all.filter(move |(name, _)| !earlier(i, name))
        })
    }

    /// The names, for people.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.iter().map(|(name, _)| format!("{name:?}")).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

fn find<'a>(place: &'a [(String, String)], name: &str) -> Option<&'a str> {
    place.iter().find(|(known, _)| known == name).map(|(_, source)| source.as_str())
}

/// The templates under `chat_template` of a configuration.
fn within(file: &str, text: Option<&str>) -> Result<Vec<(String, String)>> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let bad = |problem: String| match file {
        "tokenizer_config.json" => TextError::TokenizerConfig(problem),
        _ => TextError::Template(format!("{file}: {problem}")),
    };
    let mut config: Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    match config.get_mut("chat_template").map(Value::take) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![(DEFAULT.to_owned(), source)]),
        Some(Value::Array(named)) => {
            let text = |entry: &Value, key| entry[key].as_str().map(str::to_owned);
            Ok(named.iter().filter_map(|entry| Some((text(entry, "name")?, text(entry, "template")?))).collect())
        }
        Some(Value::Object(named)) => {
            Ok(named.into_iter().filter_map(|(name, source)| Some((name, source.as_str()?.to_owned()))).collect())
        }
        Some(_) => Err(TextError::Template(format!("that of {file} is neither a text nor a list of named ones"))),
    }
}
