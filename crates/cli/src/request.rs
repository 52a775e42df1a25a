//! Requests in OpenAI's form, from a file.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value};
use turbospark::text::{ImageSource, Message};
use turbospark::{ChatOptions, DataUris, ImageLoader, Model, Prompt};

use crate::args::AnswerArgs;
use crate::input;

/// A request that was read.
pub struct Request {
    pub messages: Vec<Message>,
    pub options: ChatOptions,
    /// What it says about the answer.
    pub answer: AnswerArgs,
    /// Keys that have no effect here.
    pub unused: Vec<String>,
    files: RequestFiles,
}

/// Images by `data:` URI, path or `file:` URL; relative paths begin at the request's own folder.
struct RequestFiles {
    folder: PathBuf,
}

impl ImageLoader for RequestFiles {
    fn load(&self, source: &ImageSource) -> Result<Vec<u8>, String> {
        let url = source.url.as_str();
        if url.starts_with("data:") {
            let bytes = DataUris.load(source)?;
            return input::refuse_films(&bytes).map(|()| bytes).map_err(|e| e.to_string());
        }
        let path = match url.split_once("://") {
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("file") => file_url(url)?,
            Some((scheme, _)) => {
                return Err(format!("{scheme}: addresses are not fetched; save the picture and give its path"));
            }
            None => PathBuf::from(url),
        };
        if path.as_os_str() == input::STDIN {
            return Err("standard input is not an image's address".into());
        }
        let path = self.folder.join(path);
        input::bytes(&path).map_err(|e| format!("{}: {e:#}", path.display()))
    }
}

/// The path of a `file:` URL.
pub fn file_url(url: &str) -> Result<PathBuf, String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.strip_prefix("localhost").filter(|r| r.starts_with('/')).unwrap_or(rest);
    let mut bytes = Vec::with_capacity(rest.len());
    let mut left = rest.bytes();
    while let Some(b) = left.next() {
        if b != b'%' {
            bytes.push(b);
            continue;
        }
        let mut digit = || left.next().and_then(|b| char::from(b).to_digit(16));
        let (high, low) = (digit(), digit());
        let byte = high.zip(low).map(|(h, l)| (16 * h + l) as u8);
        bytes.push(byte.ok_or_else(|| format!("{url}: a % in a file: URL needs two hexadecimal digits"))?);
    }
    String::from_utf8(bytes).map(PathBuf::from).map_err(|_| format!("{url}: the path is no text"))
}

impl Request {
    /// Reads a request, or a bare list of messages, from a file or standard input.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let stdin = path.as_os_str() == input::STDIN;
        let text = if stdin { input::stdin_text() } else { Ok(std::fs::read_to_string(path)?) };
        let named = || input::name(path);
        let value: Value = serde_json::from_str(&text.with_context(named)?).with_context(named)?;
        let folder = path.parent().filter(|_| !stdin).map_or_else(PathBuf::new, Path::to_owned);
        Self::parse(value, folder).with_context(named)
    }

    fn parse(value: Value, folder: PathBuf) -> anyhow::Result<Self> {
        let mut keys = match value {
            Value::Object(keys) => keys,
            list @ Value::Array(_) => Map::from_iter([("messages".to_owned(), list)]),
            _ => bail!("a request is an object with \"messages\""),
        };
        let messages = keys.remove("messages").ok_or_else(|| anyhow!("the request has no \"messages\""))?;
        let messages: Vec<Message> = serde_json::from_value(messages).context("\"messages\"")?;
        if messages.is_empty() {
            bail!("the request has no messages");
        }
        let mut take = |key: &str| keys.remove(key).filter(|v| !v.is_null());
        let template_kwargs = match take("chat_template_kwargs") {
            None => Map::new(),
            Some(Value::Object(kwargs)) => kwargs,
            Some(_) => bail!("\"chat_template_kwargs\" is no object"),
        };
        let options = ChatOptions { tools: take("tools"), template_kwargs, ..ChatOptions::default() };
        let whole = |key: &str, value: Option<Value>| -> anyhow::Result<Option<u64>> {
            value.map(|v| v.as_u64().ok_or_else(|| anyhow!("{key:?} is {v}, expected a whole number"))).transpose()
        };
        let real = |key: &str, value: Option<Value>| -> anyhow::Result<Option<f32>> {
            let number =
                |v: Value| v.as_f64().map(|x| x as f32).ok_or_else(|| anyhow!("{key:?} is {v}, expected a number"));
            value.map(number).transpose()
        };
        let max_tokens = take("max_completion_tokens").or(take("max_tokens"));
        let answer = AnswerArgs {
            max_tokens: whole("max_tokens", max_tokens)?.map(|n| n as usize),
            temperature: real("temperature", take("temperature"))?,
            top_p: real("top_p", take("top_p"))?,
            top_k: whole("top_k", take("top_k"))?.map(|n| n as usize),
            min_p: real("min_p", take("min_p"))?,
            repetition_penalty: real("repetition_penalty", take("repetition_penalty"))?,
            presence_penalty: real("presence_penalty", take("presence_penalty"))?,
            frequency_penalty: real("frequency_penalty", take("frequency_penalty"))?,
            seed: whole("seed", take("seed"))?,
            stop: stops(take("stop"))?,
        };
        let unused = keys
            .into_iter()
            .filter(|(key, value)| !value.is_null() && !matches!(key.as_str(), "model" | "stream" | "stream_options"))
            .map(|(key, _)| key)
            .collect();
        Ok(Request { messages, options, answer, unused, files: RequestFiles { folder } })
    }

    /// Its prompt.
    pub fn prompt(&self, model: &Model) -> anyhow::Result<Prompt> {
        Ok(model.prompt_from_messages(&self.messages, &self.files, &self.options)?)
    }
}

fn stops(value: Option<Value>) -> anyhow::Result<Vec<String>> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop]),
        Some(list) => serde_json::from_value(list).context("\"stop\" is neither a text nor a list of texts"),
    }
}
