//! The checkpoint's chat template: messages to segments.

mod clock;
mod environment;
mod json;
mod mask;
mod python;
mod several;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::SystemTime;

use minijinja::value::{Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value, json};

use crate::error::{Result, TextError};
use crate::message::{Content, Message, Part, Role, ToolCall};
use crate::{Segment, Tokenizer};
use environment::{Now, Raised, describe, environment, without_generation_tags};
use mask::{Marking, Mask, UsedPrivate};
pub use several::{ChatTemplates, TemplateTexts};

/// Variables of a render that are ours: private characters in use, and the time.
const MARKS: &str = "turbospark_marks";
const NOW: &str = "turbospark_now";

const NAME: &str = "chat_template";
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", MARKS, NOW];

const MAX_SOURCE: usize = 1 << 20;
// One step is about one instruction or 64 bytes of text made. A long conversation needs a few
// hundred steps a message; the base alone ends within a second and makes at most 128 MiB.
const BASE_STEPS: u64 = 2_000_000;
const STEPS_PER_MESSAGE: u64 = 2_000;
const BASE_OUTPUT: usize = 1 << 20;

/// How messages are rendered.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// OpenAI's `tools` list.
    pub tools: Option<Value>,
    /// Further arguments for the template, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// The time that `strftime_now` shows; the system's when absent.
    pub now: Option<SystemTime>,
}

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    variables: HashSet<String>,
    reads_parts: bool,
}

impl ChatTemplate {
    /// Parses a template's source.
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(TextError::Template(format!("{} bytes long, more than {MAX_SOURCE}", source.len())));
        }
        let source = without_generation_tags(source);
        let env = environment(NAME, source.clone())?;
        let template = env.get_template(NAME);
        let template = template.map_err(|error| TextError::Template(describe(&error)))?;
        let variables = template.undeclared_variables(false);
        let signs = [".type", "['type']", "[\"type\"]", ".text", "'text' in"];
        Ok(ChatTemplate { reads_parts: signs.iter().any(|sign| source.contains(sign)), env, source, variables })
    }

    /// `chat_template.jinja` where there is one, else `chat_template` of `tokenizer_config.json`; [`ChatTemplates`] has
    /// all places and all names.
    ///
    /// # Errors
    /// Where there is none, or it can't be parsed.
    pub fn from_files(jinja: Option<&str>, config: Option<&str>) -> Result<Self> {
        let texts = TemplateTexts { jinja, tokenizer_config: config, ..TemplateTexts::default() };
        let none = || TextError::Template("the checkpoint has none".to_owned());
        ChatTemplates::read(&texts)?.own()?.ok_or_else(none)
    }

    /// Whether the template reads a variable of this name: an argument it does not read has no effect.
    pub fn reads(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Renders messages into control tokens and plain text.
    ///
    /// Only the template's own literals become [`Segment::Control`]. What the messages, tools and
    /// arguments spell stays plain; the one exception are the tags (`<think>`, `<tool_call>`: added
    /// tokens that are not special) in the assistant's own content and reasoning.
    pub fn render(&self, tokenizer: &Tokenizer, messages: &[Message], options: &RenderOptions) -> Result<Vec<Segment>> {
        let kwargs = &options.template_kwargs;
        if let Some(name) = kwargs.keys().find(|name| RESERVED.contains(&name.as_str())) {
            return Err(TextError::ReservedArgument(name.clone()));
        }
        let names = tokenizer.named_tokens();
        let bare: Vec<Value> = messages.iter().map(|m| self.message_value(m)).collect();
        let mut typed = vec![Value::Array(bare)];
        typed.extend(options.tools.clone());
        typed.push(Value::Object(kwargs.clone()));

        let mut used = UsedPrivate::default();
        used.scan(&self.source);
        names.values().for_each(|token| used.scan(token));
        for value in &typed {
            used.scan_json(value)?;
        }
        let mask = Mask::new(tokenizer.added(), &used)?;
        let size = typed.iter().map(text_bytes).sum::<usize>();

        let masked = typed[0].as_array().into_iter().flatten();
        let masked: Vec<Value> = masked.map(|message| hide_message(&mask, message)).collect();
        let mut context: BTreeMap<String, Jinja> = BTreeMap::new();
        for (name, token) in names {
            context.insert(name.clone(), Jinja::from(token.as_str()));
        }
        for (name, value) in kwargs {
            context.insert(name.clone(), Jinja::from(Serde(mask.hide_json(value))));
        }
        let tools = options.tools.as_ref().map(|tools| mask.hide_json(tools));
        context.insert("messages".into(), Jinja::from(Serde(masked)));
        context.insert("tools".into(), Jinja::from(Serde(tools)));
        let open = options.add_generation_prompt;
        context.insert("add_generation_prompt".into(), Jinja::from(open));
        context.insert(MARKS.into(), Jinja::from(mask.private_chars()));
        let now = options.now.unwrap_or_else(SystemTime::now);
        context.insert(NOW.into(), Jinja::from_object(Now(now)));

        let text = self.run(context, size, messages.len())?;
        let mut segments = tokenizer.split_template(&text);
        for segment in &mut segments {
            if let Segment::Plain(text) = segment {
                *text = mask.reveal(text);
            }
        }
        Ok(segments)
    }

    fn run(&self, context: BTreeMap<String, Jinja>, size: usize, messages: usize) -> Result<String> {
        let steps = BASE_STEPS + STEPS_PER_MESSAGE * messages as u64 + size as u64 / 8;
        // A clone shares the compiled template; the budget is the render's own.
        let mut env = self.env.clone();
        env.set_fuel(Some(steps));
        let limit = BASE_OUTPUT.saturating_add(size.saturating_mul(8));
        let mut out = Limited { bytes: Vec::new(), limit };
        let template = env.get_template(NAME);
        let template = template.map_err(|error| TextError::Template(describe(&error)))?;
        let context = Jinja::from_pairs(context);
        let done = template.render_captured_to(context, &mut out).map(drop);
        match done {
            Ok(()) => {
                String::from_utf8(out.bytes).map_err(|_| TextError::Template("wrote bytes that are no text".into()))
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(TextError::TemplateBudget(steps)),
            Err(error) if error.kind() == ErrorKind::WriteFailure => Err(TextError::TemplateOutput(limit)),
            Err(error) => Err(match raised(&error) {
                Some(message) => TextError::TemplateRefused(message),
                None => TextError::Template(describe(&error)),
            }),
        }
    }

    /// A message as the template sees it. Images and videos are bare parts: their addresses are not
    /// the template's business, and may be megabytes long.
    fn message_value(&self, message: &Message) -> Value {
        let mut value = Map::new();
        value.insert("role".into(), message.role.as_str().into());
        let content = match &message.content {
            Content::Text(text) => Value::String(text.clone()),
            Content::Parts(parts) => self.parts_value(parts),
        };
        value.insert("content".into(), content);
        let optional = [
            ("name", &message.name),
            ("tool_call_id", &message.tool_call_id),
            ("reasoning_content", &message.reasoning_content),
        ];
        for (key, text) in optional {
            if let Some(text) = text {
                value.insert(key.into(), Value::String(text.clone()));
            }
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().map(call_value).collect();
            value.insert("tool_calls".into(), calls);
        }
        Value::Object(value)
    }

    fn parts_value(&self, parts: &[Part]) -> Value {
        // Templates of text models know strings only; joined is what the others make of text parts.
        let texts: Option<String> = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        if let Some(text) = texts.filter(|_| !self.reads_parts) {
            return Value::String(text);
        }
        let part = |part: &Part| match part {
            Part::Text(text) => json!({"type": "text", "text": text}),
            Part::Image(_) => json!({"type": "image"}),
            Part::Video(_) => json!({"type": "video"}),
        };
        parts.iter().map(part).collect()
    }
}

/// Templates expect a call's arguments as an object; OpenAI's API sends them as a string.
fn call_value(call: &ToolCall) -> Value {
    let arguments = match &call.function.arguments {
        Value::String(text) => match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(arguments) => Value::Object(arguments),
            Err(_) => Value::String(text.clone()),
        },
        Value::Null => Value::Object(Map::new()),
        other => other.clone(),
    };
    let function = json!({"name": call.function.name, "arguments": arguments});
    match &call.id {
        Some(id) => json!({"id": id, "type": "function", "function": function}),
        None => json!({"type": "function", "function": function}),
    }
}

fn hide_message(mask: &Mask<'_>, message: &Value) -> Value {
    let own_words = message["role"] == Role::Assistant.as_str();
    let entries = message.as_object().into_iter().flatten();
    let entry = |(key, value): (&String, &Value)| {
        let tags = own_words && (key == "content" || key == "reasoning_content");
        let hidden = match value {
            // Set by us from a fixed list, and compared with literals.
            role if key == "role" => role.clone(),
            Value::String(text) if tags => Value::String(mask.hide(text, Marking::KeepTags)),
            Value::Array(parts) if key == "content" => {
                let marking = if tags { Marking::KeepTags } else { Marking::All };
                parts.iter().map(|part| hide_part(mask, part, marking)).collect()
            }
            Value::Array(calls) if key == "tool_calls" => calls.iter().map(|call| hide_call(mask, call)).collect(),
            other => mask.hide_json(other),
        };
        (key.clone(), hidden)
    };
    Value::Object(entries.map(entry).collect())
}

fn hide_part(mask: &Mask<'_>, part: &Value, marking: Marking) -> Value {
    match part.get("text").and_then(Value::as_str) {
        Some(text) => json!({"type": "text", "text": mask.hide(text, marking)}),
        None => part.clone(),
    }
}

fn hide_call(mask: &Mask<'_>, call: &Value) -> Value {
    let function = &call["function"];
    let hidden = json!({
        "name": mask.hide_json(&function["name"]),
        "arguments": mask.hide_json(&function["arguments"]),
    });
    let mut call = call.clone();
    call["function"] = hidden;
    if let Some(id) = call.get_mut("id") {
        *id = mask.hide_json(id);
    }
    call
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 8 + text_bytes(item)).sum(),
        Value::Object(entries) => entries.iter().map(|(key, item)| 8 + key.len() + text_bytes(item)).sum(),
        _ => 8,
    }
}

fn raised(error: &minijinja::Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        source = cause.source();
    }
    None
}

/// A writer that ends a render which writes too much.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::other("output limit reached"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
