//! One answer: made, streamed, and as a JSON object.

use std::time::Duration;

use serde_json::{Value, json};
use turbospark::vision::Picture;
use turbospark::{Answer, FinishReason, GenerateOptions, Model, Pixels, Prompt, Reads, Session};
use turbospark_hub::Bytes;

use crate::console;
use crate::progress::Progress;

/// Answers `prompt`, handing pieces of text to `piece` as they come.
pub fn stream(
    session: &mut Session,
    prompt: &Prompt,
    options: &GenerateOptions,
    progress: &Progress,
    piece: &mut dyn FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Answer> {
    let mut generation = session.generate(prompt, options)?.on_progress(|p| progress.report(p));
    while let Some(text) = generation.next() {
        let text = text?;
        let so_far = generation.so_far();
        progress.decoding(so_far.usage.completion_tokens, so_far.timing.decode);
        piece(&text)?;
    }
    Ok(generation.so_far().clone())
}

/// Streams to stdout and closes the last line.
pub fn stream_to_stdout(
    session: &mut Session,
    prompt: &Prompt,
    options: &GenerateOptions,
    progress: &Progress,
) -> anyhow::Result<Answer> {
    let mut open_line = false;
    let answer = stream(session, prompt, options, progress, &mut |text| {
        open_line = !text.ends_with('\n');
        console::print(text)
    });
    progress.hide();
    if open_line {
        console::print("\n")?;
    }
    answer
}

/// Tells that an answer was cut by length and what to do about it; whether it was. `name` heads the message.
pub fn tell_cut(name: &str, model: &Model, answer: &Answer) -> bool {
    if answer.finish_reason != FinishReason::Length {
        return false;
    }
    let (made, prompt) = (answer.usage.completion_tokens, answer.usage.prompt_tokens);
    let (cause, flag) = if prompt + made >= model.context() {
        (format!("the context of {} tokens is full", model.context()), "--context")
    } else {
        ("that is the most an answer may have".into(), "--max-tokens")
    };
    let separator = if name.is_empty() { "" } else { ": " };
    console::error(format_args!("{name}{separator}the text was cut after {made} tokens, {cause}; raise {flag}"));
    true
}

/// The pictures of a prompt.
pub fn pictures(prompt: &Prompt) -> impl Iterator<Item = &Picture> {
    prompt.visuals().iter().filter_map(|v| match &v.pixels {
        Pixels::Picture(picture) => Some(&**picture),
        Pixels::Patches(_) => None,
    })
}

/// The object of an answer, without what names its page.
pub fn object(model: &Model, prompt: &Prompt, answer: &Answer) -> Value {
    let images: Vec<Value> = pictures(prompt).map(image).collect();
    let (usage, timing) = (answer.usage, answer.timing);
    let mut object = json!({
        "text": answer.text,
        "finish_reason": answer.finish_reason.as_str(),
        "images": images,
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
        "timing": {
            "encode_s": seconds(timing.encode),
            "prefill_s": seconds(timing.prefill),
            "decode_s": seconds(timing.decode),
        },
        "model": model.name(),
    });
    if let Some(reads) = model.reads() {
        object["reads"] = reads_object(&reads);
    }
    object["memory"] = json!({
        "ceiling": model.memory_plan().ceiling,
        "planned": model.memory_plan().total(),
        "peak": turbospark::peak_bytes(),
    });
    object
}

/// What was read again.
pub fn reads_object(reads: &Reads) -> Value {
    json!({
        "bytes": reads.bytes,
        "stalled_s": seconds(reads.stalled),
        "hits": reads.hits,
        "misses": reads.misses,
        "expert_bytes": reads.expert_bytes,
        "expert_hits": reads.expert_hits,
        "expert_misses": reads.expert_misses,
        "expert_hit_rate": reads.expert_hit_rate(),
        "guesses": reads.guesses,
        "right_guesses": reads.right_guesses,
        "vain_bytes": reads.vain_bytes,
    })
}

fn image(picture: &Picture) -> Value {
    let mut image = json!({
        "width": picture.width,
        "height": picture.height,
        "grid_thw": grid(picture),
        "tokens": picture.tokens(),
    });
    if !picture.notes.is_empty() {
        image["notes"] = picture.notes.iter().map(|n| n.to_string()).collect();
    }
    image
}

/// Patches along time, height and width.
pub fn grid(picture: &Picture) -> [usize; 3] {
    let grid = picture.grid;
    [grid.t, grid.h, grid.w]
}

/// `keys` first, then those of `object`.
pub fn headed(keys: Value, object: Value) -> Value {
    match (keys, object) {
        (Value::Object(mut head), Value::Object(rest)) => {
            head.extend(rest);
            Value::Object(head)
        }
        (_, object) => object,
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

/// What was read of weights that stay on the disk, in a line; and the most memory that was in use.
pub fn tell_reads(model: &Model) {
    if let Some(reads) = model.reads() {
        let experts = match reads.expert_hit_rate() {
            Some(rate) => format!(
                "; of experts {} read, {:.1} % of {} were there, {} of {} guesses were right",
                Bytes(reads.expert_bytes),
                100.0 * rate,
                reads.expert_hits + reads.expert_misses,
                reads.right_guesses,
                reads.guesses
            ),
            None => String::new(),
        };
        console::note(format_args!(
            "{} of weights read, {:.2} s waited for them, {} of {} units were there{experts}",
            Bytes(reads.bytes),
            reads.stalled.as_secs_f64(),
            reads.hits,
            reads.hits + reads.misses
        ));
    }
    if let Some(peak) = turbospark::peak_bytes() {
        let ceiling = model.memory_plan().ceiling;
        let under = ceiling.map_or(String::new(), |ceiling| format!(" under a ceiling of {}", Bytes(ceiling)));
        console::note(format_args!("at most {} were in memory{under}", Bytes(peak)));
    }
}

/// Tokens and times in a line.
pub fn summary(answer: &Answer) -> String {
    let (usage, timing) = (answer.usage, answer.timing);
    let rate = |tokens: usize, time: Duration| if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() };
    let fresh = usage.prompt_tokens - usage.reused_tokens;
    format!(
        "prompt {} tokens ({} from the cache), images {:.2} s, prompt {:.2} s ({:.0} tokens/s), answer {} tokens in {:.2} s ({:.1} tokens/s)",
        usage.prompt_tokens,
        usage.reused_tokens,
        timing.encode.as_secs_f64(),
        timing.prefill.as_secs_f64(),
        rate(fresh, timing.prefill),
        usage.completion_tokens,
        timing.decode.as_secs_f64(),
        rate(usage.completion_tokens.saturating_sub(1), timing.decode),
    )
}
