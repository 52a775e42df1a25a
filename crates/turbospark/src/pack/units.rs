//! Which tensors lie together, and what a packed folder calls them.

use turbospark_models::Planned;
use turbospark_tensor::Shape;
use turbospark_weights::packed::{Part, Spec, Unit};
use turbospark_weights::{Linear, Piece};

use super::change::Change;

/// One tensor to write: a planned one, or an expert's part of it.
#[derive(Debug)]
pub(super) struct Job<'a> {
    /// Its name in the packed folder.
    pub name: String,
    pub planned: &'a Planned,
    /// Of a tensor of all experts: which one, and which of its outputs.
    pub expert: Option<Expert>,
}

/// Outputs of one expert.
#[derive(Clone, Debug)]
pub(super) struct Expert {
    pub index: usize,
    /// Outputs `first..first + rows` of `all`.
    pub first: usize,
    pub rows: usize,
    pub all: usize,
    /// Inputs.
    pub inner: usize,
}

impl Job<'_> {
    /// The sides of the tensor once it is written.
    pub fn shape(&self) -> Shape {
        match &self.expert {
            Some(e) => Shape::from([e.rows, e.inner]),
            None => self.planned.source.shape(),
        }
    }

    /// Rows and their length, as they are written: of a convolution or a patch embedding rows of the innermost side.
    pub fn matrix(&self) -> (usize, usize) {
        let shape = self.shape();
        let inner = shape.dims().last().copied().unwrap_or(1);
        (shape.elements() / inner.max(1), inner)
    }

    /// What a packed folder does to it; `None` where codes and scales are kept apart.
    pub fn as_stored(&self) -> Option<Change> {
        match (&self.planned.source, self.planned.target) {
            (_, Some(dtype)) => Some(Change::to(dtype)),
            (Linear::Piece(piece), None) => Some(Change::to(piece.dtype())),
            (Linear::Scaled(_), None) => None,
        }
    }

    /// What it is made of once it is written.
    pub fn parts(&self) -> Vec<Part> {
        let shape = self.shape();
        if let Some(dtype) = self.planned.target {
            return vec![Part { dtype, shape }];
        }
        match &self.planned.source {
            Linear::Piece(piece) => vec![Part { dtype: piece.dtype(), shape }],
            Linear::Scaled(s) => {
                s.pieces().map(|piece| Part { dtype: piece.dtype(), shape: self.part_shape(piece) }).collect()
            }
        }
    }

    /// The sides of codes or scales: of an expert those that belong to its outputs.
    pub fn part_shape(&self, piece: &Piece) -> Shape {
        let Some(e) = &self.expert else { return piece.shape() };
        let &[_, lines, columns] = piece.shape().dims() else { unreachable!("of all experts") };
        Shape::from([self.lines(e, lines).len(), columns])
    }

    /// Which of an expert's `lines` of codes or scales belong to its outputs.
    pub fn lines(&self, e: &Expert, lines: usize) -> std::ops::Range<usize> {
        let shared = e.all.div_ceil(lines.max(1)).max(1);
        e.first / shared..(e.first + e.rows).div_ceil(shared)
    }

    fn spec(&self) -> Spec {
        let form = match (&self.planned.source, self.planned.target) {
            (Linear::Scaled(s), None) => Some(s.form),
            _ => None,
        };
        Spec { name: self.name.clone(), shape: self.shape(), parts: self.parts(), form }
    }
}

/// Whether a weight is quantised and stays so.
pub(super) fn stays_quantised(planned: &Planned) -> bool {
    let visual = planned.name.contains(".visual.");
    !visual
        && planned.target.is_none()
        && match &planned.source {
            Linear::Scaled(_) => true,
            Linear::Piece(piece) => piece.dtype().is_block(),
        }
}

/// The tensors of a model by unit, in the order of use.
pub(super) fn units(planned: &[Planned]) -> Vec<(String, Vec<Job<'_>>)> {
    let mut units: Vec<(String, Vec<Job<'_>>)> = Vec::new();
    for job in planned.iter().flat_map(jobs) {
        let name = unit_of(&job.name);
        match units.iter_mut().rev().take(1 + MOST_EXPERTS).find(|(known, _)| *known == name) {
            Some((_, jobs)) => jobs.push(job),
            None => units.push((name, vec![job])),
        }
    }
    units
}

/// How far back a unit is looked for: a layer's experts come between its tensors.
const MOST_EXPERTS: usize = 1 << 12;

/// The unit with its tensors' forms.
pub(super) fn layout(name: &str, jobs: &[Job<'_>]) -> Unit {
    Unit { name: name.to_owned(), tensors: jobs.iter().map(Job::spec).collect() }
}

/// A tensor as it is, one of all experts expert by expert.
pub(super) fn jobs(planned: &Planned) -> Vec<Job<'_>> {
    let whole = || vec![Job { name: planned.name.clone(), planned, expert: None }];
    let Some((layer, part)) = planned.name.split_once(".experts.") else { return whole() };
    let &[experts, a, b] = planned.source.shape().dims() else { return whole() };
    let (all, inner) = if planned.in_out { (b, a) } else { (a, b) };
    let parts: &[(&str, usize, usize)] = match part.trim_end_matches(".weight") {
        "gate_up_proj" => &[("gate_proj", 0, all / 2), ("up_proj", all / 2, all / 2)],
        "gate_proj" => &[("gate_proj", 0, all)],
        "up_proj" => &[("up_proj", 0, all)],
        _ => &[("down_proj", 0, all)],
    };
    let each = (0..experts).flat_map(|index| parts.iter().map(move |&(part, first, rows)| (index, part, first, rows)));
    each.map(|(index, part, first, rows)| Job {
        name: format!("{layer}.experts.{index}.{part}.weight"),
        planned,
        expert: Some(Expert { index, first, rows, all, inner }),
    })
    .collect()
}

/// `model.language_model.layers.3.mlp.experts.7.up_proj.weight` -> `layers.3.experts.7`.
fn unit_of(name: &str) -> String {
    let words: Vec<&str> = name.split('.').collect();
    let after = |word: &str| {
        let at = words.iter().position(|w| *w == word)?;
        words.get(at + 1)?.parse::<usize>().ok()
    };
    if name.contains(".visual.") {
        return match after("blocks") {
            Some(block) => format!("visual.blocks.{block}"),
            None if name.contains("merger") => "visual.mergers".to_owned(),
            None => "visual.embedding".to_owned(),
        };
    }
    match (after("layers"), after("experts")) {
        (Some(layer), Some(expert)) => format!("layers.{layer}.experts.{expert}"),
        (Some(layer), None) => format!("layers.{layer}"),
        _ if name.contains("embed_tokens") => "embedding".to_owned(),
        _ => "head".to_owned(),
    }
}

/// The part of a model for people.
pub(super) fn part_of(name: &str) -> &'static str {
    let has = |word: &str| name.contains(word);
    match () {
        () if has(".visual.") => "vision tower",
        () if has("embed_tokens") => "embedding",
        () if has("lm_head") => "output head",
        () if has("linear_attn") => "linear attention",
        () if has("self_attn") => "attention",
        () if has("shared_expert") => "shared expert",
        () if has(".experts.") || has("mlp.gate.") => "experts and router",
        () if has(".mlp.") => "mlp",
        () => "norms",
    }
}

/// The form of codes and scales for people.
pub(super) fn form_of(job: &Job<'_>) -> String {
    match &job.planned.source {
        Linear::Piece(piece) => piece.dtype().to_string(),
        Linear::Scaled(s) => s.form.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::unit_of;

    #[test]
    fn what_is_used_together_is_a_unit() {
        for (name, unit) in [
            ("model.language_model.layers.3.mlp.experts.7.up_proj.weight", "layers.3.experts.7"),
            ("model.language_model.layers.3.mlp.gate.weight", "layers.3"),
            ("model.visual.blocks.11.attn.qkv.bias", "visual.blocks.11"),
            ("model.visual.deepstack_merger_list.0.norm.weight", "visual.mergers"),
            ("model.visual.pos_embed.weight", "visual.embedding"),
            ("model.language_model.embed_tokens.weight", "embedding"),
            ("model.language_model.norm.weight", "head"),
            ("lm_head.weight", "head"),
        ] {
            assert_eq!(unit_of(name), unit);
        }
    }
}
