//! A prompt of a fixture set: ids, positions, and which row of which image each placeholder takes.

use serde_json::Value;
use turbospark_models::{Row, Source};
use turbospark_vision::{Grid, Modality, Positions, rope_index};

use super::TraceError;
use super::file::Files;

pub(super) struct Prompt {
    pub rows: Vec<Row>,
    pub positions: Positions,
    /// Grids of the images, then of the videos.
    pub grids: [Vec<Grid>; 2],
}

pub(super) fn numbers(value: &Value) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize)).collect()
}

pub(super) fn grids(value: &Value) -> Option<Vec<Grid>> {
    if value.is_null() {
        return Some(Vec::new());
    }
    let one = |v: &Value| match numbers(v)?[..] {
        [t, h, w] => Some(Grid { t, h, w }),
        _ => None,
    };
    value.as_array()?.iter().map(one).collect()
}

pub(super) fn modalities(value: &Value) -> Option<Vec<Modality>> {
    numbers(value)?.into_iter().map(|id| Modality::try_from(u8::try_from(id).ok()?).ok()).collect()
}

impl Prompt {
    /// Prompt `name` of `prompts/prompts.json`. The ids are run as they are: with a video's markers nested.
    pub fn read(files: Files<'_>, name: &str, qwen35: bool, merge: usize) -> Result<Self, TraceError> {
        const PATH: &str = "prompts/prompts.json";
        let all = files.json(PATH)?;
        let p = &all[name];
        let parts = || {
            let own = &p["qwen3_5_ids"];
            let ids = numbers(if qwen35 && !own.is_null() { own } else { &p["ids"] })?;
            Some((
                ids,
                modalities(&p["mm_token_type_ids"])?,
                grids(&p["image_grid_thw"])?,
                grids(&p["video_grid_thw"])?,
            ))
        };
        let broken = || files.broken(PATH, format!("prompt {name:?} is missing or incomplete"));
        let (ids, modalities, images, videos) =
            parts().filter(|p| !p.0.is_empty() && p.0.len() == p.1.len()).ok_or_else(broken)?;
        let positions = rope_index(&modalities, &images, &videos, merge).map_err(TraceError::of(name))?;
        let mut sources = [slots(&images, 0, merge), slots(&videos, images.len(), merge)].map(Vec::into_iter);
        let rows = ids.iter().zip(&modalities).zip(&positions.thw).map(|((&id, modality), &position)| {
            let source = match modality {
                Modality::Text => Some(Source::Token(id as u32)),
                Modality::Image => sources[0].next(),
                Modality::Video => sources[1].next(),
            };
            source.map(|source| Row { source, position, logits: true })
        });
        Ok(Prompt { rows: rows.collect::<Option<_>>().ok_or_else(broken)?, positions, grids: [images, videos] })
    }
}

/// The rows of pictures in order, the first of them being number `first`.
fn slots(grids: &[Grid], first: usize, merge: usize) -> Vec<Source> {
    let each = |(i, g): (usize, &Grid)| (0..g.tokens(merge)).map(move |row| Source::Image { image: first + i, row });
    grids.iter().enumerate().flat_map(each).collect()
}
