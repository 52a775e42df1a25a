//! The tokens before a text that no template wrote.

use serde::Deserialize;
use serde_json::Value;

use super::invalid;
use crate::error::Result;

/// The ids that a `post_processor` puts before a single text. What it puts after one ends the text, which
/// a prompt must not.
pub(super) fn leading_ids(post_processor: &Value) -> Result<Vec<u32>> {
    let bad = |error: serde_json::Error| invalid(format!("post_processor: {error}"));
    let steps = match post_processor["processors"].as_array() {
        Some(steps) if post_processor["type"] == "Sequence" => steps.as_slice(),
        _ => std::slice::from_ref(post_processor),
    };
    let Some(template) = steps.iter().find(|step| step["type"] == "TemplateProcessing") else {
        return Ok(Vec::new());
    };
    let mut ids = Vec::new();
    for piece in template["single"].as_array().into_iter().flatten() {
        match Piece::deserialize(piece).map_err(bad)? {
            Piece::SpecialToken { id } => {
                let token = SpecialToken::deserialize(&template["special_tokens"][&id]).map_err(bad)?;
                ids.extend(token.ids);
            }
            Piece::Sequence {} => break,
        }
    }
    Ok(ids)
}

#[derive(Deserialize)]
enum Piece {
    SpecialToken { id: String },
    Sequence {},
}

#[derive(Deserialize)]
struct SpecialToken {
    ids: Vec<u32>,
}
