//! `preprocess`: what the model will see.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use turbospark::vision::Picture;
use turbospark::{Model, Prompt};

use crate::args::ModelArgs;
use crate::outcome::Outcome;
use crate::request::Request;
use crate::tensors::{self, Named};
use crate::{answer, console, input, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PreprocessArgs {
    /// Image files; - is standard input
    #[arg(required_unless_present = "messages", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show the prompt that a request becomes: ids, image spans, positions
    #[arg(long, value_name = "FILE.json", conflicts_with = "files")]
    messages: Option<PathBuf>,
    /// Write i.rgb (u8, after orienting and sizing) and i.patches (f32) of file number i, from 0
    #[arg(long, value_name = "OUT.safetensors")]
    pixels: Option<PathBuf>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

const EXAMPLES: &str = "\
Examples:
  turbospark preprocess photo.jpg scan.png
  turbospark preprocess --json --max-pixels 262144 photo.jpg
  turbospark preprocess --pixels seen.safetensors photo.jpg
  turbospark preprocess --messages request.json --json
  turbospark preprocess --model Qwen3-VL-2B-Instruct photo.jpg

Sizes are those of the upright image. pixel_sha256 is the digest of the patches as little-endian
f32. A file that is refused is named with the reason, and the exit code is 1.";

pub fn run(args: &PreprocessArgs) -> anyhow::Result<Outcome> {
    let request = args.messages.as_deref().map(Request::read).transpose()?;
    let model = model::open(args.model.path(), &args.model.load.options_to_look())?;
    let mut show = Show { args, tensors: Vec::new(), widest: 0, failed: false };
    match request {
        None => show.files(&model)?,
        Some(request) => show.prompt(&model, &request)?,
    }
    if let Some(path) = &args.pixels {
        tensors::write(path, &show.tensors)?;
    }
    Ok(Outcome::failed_if(show.failed))
}

struct Show<'a> {
    args: &'a PreprocessArgs,
    tensors: Vec<Named>,
    /// Width of the name column.
    widest: usize,
    failed: bool,
}

impl Show<'_> {
    fn files(&mut self, model: &Model) -> anyhow::Result<()> {
        let names: Vec<String> = self.args.files.iter().map(|f| input::name(f)).collect();
        self.header(&names)?;
        for (i, (file, name)) in self.args.files.iter().zip(&names).enumerate() {
            match input::bytes(file).and_then(|bytes| input::picture(model, name, &bytes)) {
                Ok(picture) => self.picture(i, name, &picture)?,
                Err(error) => self.refused(name, &error)?,
            }
        }
        Ok(())
    }

    fn prompt(&mut self, model: &Model, request: &Request) -> anyhow::Result<()> {
        let file = input::name(self.args.messages.as_deref().unwrap_or("request".as_ref()));
        let prompt = match request.prompt(model) {
            Ok(prompt) => prompt,
            Err(error) => return self.refused(&file, &error),
        };
        let names: Vec<String> = (1..=prompt.visuals().len()).map(|i| format!("image {i}")).collect();
        if !names.is_empty() {
            self.header(&names)?;
        }
        for (i, (picture, name)) in answer::pictures(&prompt).zip(&names).enumerate() {
            input::tell_notes(name, picture);
            self.picture(i, name, picture)?;
        }
        if self.args.json {
            return console::print_json(&prompt_object(model, &file, &prompt));
        }
        console::print(&prompt_text(model, &prompt))
    }

    fn header(&mut self, names: &[String]) -> anyhow::Result<()> {
        self.widest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).max(4);
        if self.args.json {
            return Ok(());
        }
        let (name, w) = ("file", self.widest);
        console::print(&format!("{name:w$}  {:>11}  {:>11}  {:>10}  {:>6}\n", "size", "seen as", "patches", "tokens"))
    }

    fn picture(&mut self, i: usize, name: &str, picture: &Picture) -> anyhow::Result<()> {
        let (height, width) = picture.resized();
        if self.args.json || self.args.pixels.is_some() {
            let patches = picture.patches();
            if self.args.json {
                let mut object = json!({
                    "file": name,
                    "width": picture.width,
                    "height": picture.height,
                    "resized": [height, width],
                    "grid_thw": answer::grid(picture),
                    "tokens": picture.tokens(),
                    "pixel_sha256": digest(&patches),
                });
                if !picture.notes.is_empty() {
                    object["notes"] = picture.notes.iter().map(|n| n.to_string()).collect();
                }
                console::print_json(&object)?;
            }
            if self.args.pixels.is_some() {
                let rgb = picture.rgb().data().to_vec();
                let rows = vec![picture.grid.patches(), picture.layout().patch_len()];
                self.tensors.push(Named::u8(format!("{i}.rgb"), vec![height, width, 3], rgb));
                self.tensors.push(Named::f32(format!("{i}.patches"), rows, &patches));
            }
        }
        if self.args.json {
            return Ok(());
        }
        let size = format!("{}x{}", picture.width, picture.height);
        let (seen, grid, w) = (format!("{width}x{height}"), picture.grid.to_string(), self.widest);
        console::print(&format!("{name:w$}  {size:>11}  {seen:>11}  {grid:>10}  {:>6}\n", picture.tokens()))
    }

    fn refused(&mut self, name: &str, error: &anyhow::Error) -> anyhow::Result<()> {
        self.failed = true;
        console::error(format_args!("{name}: {error:#}"));
        match self.args.json {
            true => console::print_json(&json!({"file": name, "error": format!("{error:#}")})),
            false => Ok(()),
        }
    }
}

/// SHA-256 in hexadecimal of values as little-endian bytes.
fn digest(values: &[f32]) -> String {
    let mut hash = Sha256::new();
    let mut bytes = Vec::new();
    for chunk in values.chunks(1 << 16) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|v| v.to_le_bytes()));
        hash.update(&bytes);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// A run of text, or an image, of a prompt.
enum Piece {
    Text(String),
    Image { image: usize, tokens: usize },
}

fn pieces(model: &Model, prompt: &Prompt) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let text = |from: usize, to: usize, pieces: &mut Vec<Piece>| {
        let bytes = |&id: &u32| model.tokenizer().token_bytes(id).unwrap_or_default();
        let bytes: Vec<u8> = prompt.ids()[from..to].iter().flat_map(bytes).collect();
        if !bytes.is_empty() {
            pieces.push(Piece::Text(String::from_utf8_lossy(&bytes).into_owned()));
        }
    };
    let mut at = 0;
    for span in prompt.spans() {
        text(at, span.range.start, &mut pieces);
        pieces.push(Piece::Image { image: span.visual, tokens: span.range.len() });
        at = span.range.end;
    }
    text(at, prompt.len(), &mut pieces);
    pieces
}

fn prompt_object(model: &Model, file: &str, prompt: &Prompt) -> Value {
    let axis = |i: usize| -> Vec<u32> { prompt.positions().iter().map(|p| p[i]).collect() };
    let spans = prompt.spans().iter();
    let spans: Vec<Value> =
        spans.map(|s| json!({"image": s.visual, "start": s.range.start, "tokens": s.range.len()})).collect();
    let pieces = pieces(model, prompt).into_iter().map(|piece| match piece {
        Piece::Text(text) => json!({"text": text}),
        Piece::Image { image, tokens } => json!({"image": image, "tokens": tokens}),
    });
    let pieces: Vec<Value> = pieces.collect();
    json!({
        "messages": file,
        "tokens": prompt.len(),
        "ids": prompt.ids(),
        "spans": spans,
        "pieces": pieces,
        "positions": {"t": axis(0), "h": axis(1), "w": axis(2)},
        "rope_delta": prompt.rope_delta(),
        "first_decode_position": first_decode(prompt),
    })
}

fn first_decode(prompt: &Prompt) -> i64 {
    prompt.len() as i64 + prompt.rope_delta()
}

fn prompt_text(model: &Model, prompt: &Prompt) -> String {
    let mut out = format!("\n{} tokens:\n", prompt.len());
    for piece in pieces(model, prompt) {
        match piece {
            Piece::Text(text) => out.push_str(&format!("  {text:?}\n")),
            Piece::Image { image, tokens } => out.push_str(&format!("  <image {}: {tokens} tokens>\n", image + 1)),
        }
    }
    out.push_str("token       id  position (t, h, w)\n");
    for (i, (id, [t, h, w])) in prompt.ids().iter().zip(prompt.positions()).enumerate() {
        out.push_str(&format!("{i:5}  {id:7}  {t}, {h}, {w}\n"));
    }
    let (delta, first) = (prompt.rope_delta(), first_decode(prompt));
    out + &format!("rope_delta {delta}: the answer begins at position {first}\n")
}
