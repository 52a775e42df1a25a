use serde_json::Value;

use super::{Family, Result, node::Node};

/// How positions turn into angles. Axes are always interleaved over the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How many frequencies the axes t, h and w have; their sum is half the rotated dimensions.
    pub mrope_section: [usize; 3],
    /// Share of each head that is rotated, counted from its first dimension.
    pub partial_rotary_factor: f64,
    /// How frequencies are changed for contexts longer than those of training.
    pub scaling: RopeScaling,
    rotary_dim: usize,
}

/// How rotary frequencies are changed for longer contexts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// All are divided by a factor.
    Linear(f64),
    /// Llama 3: wavelengths above `original / low` are divided, those below `original / high` are not, and between
    /// the two it goes from one to the other.
    Llama3 {
        /// What slow frequencies are divided by.
        factor: f64,
        /// `low_freq_factor`.
        low: f64,
        /// `high_freq_factor`.
        high: f64,
        /// `original_max_position_embeddings`.
        original: f64,
    },
    /// Each is divided by a factor of its own, as GGUF files have them.
    Each(Vec<f32>),
}

impl RopeConfig {
    /// How many dimensions of each head are rotated: even, at most `head_dim`.
    pub fn rotary_dim(&self) -> usize {
        self.rotary_dim
    }

    /// Reads both spellings: `rope_parameters`, or `rope_scaling` beside a flat `rope_theta`.
    pub(super) fn read(text: &Node, family: Family, head_dim: usize) -> Result<Self> {
        let mut places = Vec::new();
        places.extend(text.child("rope_parameters")?);
        places.extend(text.child("rope_scaling")?);
        let mut scaling = RopeScaling::None;
        for place in &places {
            // `type` is the older spelling of `rope_type`.
            for key in ["rope_type", "type"] {
                match place.text(key)? {
                    Some(kind @ ("linear" | "llama3" | "each")) if family.is_text_only() => {
                        scaling = RopeScaling::read(place, kind)?;
                    }
                    _ => place.only(key, "default")?,
                }
            }
            place.only_flag("mrope_interleaved", true)?;
        }
        places.push(text.clone());

        let default_theta = if family.is_qwen35() || family.is_text_only() { 10_000.0 } else { 500_000.0 };
        let theta = agreed(&places, "rope_theta", Node::real)?.unwrap_or(default_theta);

        let default_factor = if family.is_qwen35() { 0.25 } else { 1.0 };
        let factor = agreed(&places, "partial_rotary_factor", Node::real)?.unwrap_or(default_factor);
        if !family.is_qwen35() && factor != 1.0 {
            let supported = "this family rotates whole heads (1.0)";
            return Err(text.unsupported("partial_rotary_factor", &factor.into(), supported));
        }
        if factor > 1.0 {
            return Err(text.wrong("partial_rotary_factor", "a number of at most 1", &factor.into()));
        }
        // The reference truncates too.
        let rotary_dim = (head_dim as f64 * factor) as usize;
        if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            let problem =
                format!("{factor} of head_dim {head_dim} is {rotary_dim} dimensions, expected an even number");
            return Err(text.contradiction("partial_rotary_factor", problem));
        }

        if let RopeScaling::Each(factors) = &scaling
            && factors.len() != rotary_dim / 2
        {
            let problem = format!("{} of them, expected {}", factors.len(), rotary_dim / 2);
            return Err(text.contradiction("factors", problem));
        }
        if family.is_text_only() {
            // One axis turns all frequencies.
            let mrope_section = [rotary_dim / 2, 0, 0];
            return Ok(RopeConfig { theta, mrope_section, partial_rotary_factor: factor, scaling, rotary_dim });
        }

        let default_section = if family.is_qwen35() { [11, 11, 10] } else { [24, 20, 20] };
        let mrope_section = agreed(&places, "mrope_section", section)?.unwrap_or(default_section);
        let sum: usize = mrope_section.iter().sum();
        if sum != rotary_dim / 2 {
            let problem = format!(
                "{mrope_section:?} sums to {sum}, expected {} (half of {rotary_dim} rotated dimensions)",
                rotary_dim / 2
            );
            return Err(text.contradiction("mrope_section", problem));
        }
        // Frequency j belongs to h or w only below 3 * section, so a larger share would run off the end.
        for (axis, share) in [("h", mrope_section[1]), ("w", mrope_section[2])] {
            let offset = if axis == "h" { 1 } else { 2 };
            let available = (sum + 2 - offset) / 3;
            if share > available {
                let problem = format!("{mrope_section:?} gives {share} frequencies to {axis}, {available} interleave");
                return Err(text.contradiction("mrope_section", problem));
            }
        }
        Ok(RopeConfig { theta, mrope_section, partial_rotary_factor: factor, scaling, rotary_dim })
    }
}

impl RopeScaling {
    fn read(node: &Node, kind: &str) -> Result<Self> {
        let positive = |key: &str| -> Result<f64> {
            let value = node.real(key)?.ok_or_else(|| node.missing(key, "a positive number"))?;
            if value > 0.0 { Ok(value) } else { Err(node.wrong(key, "a positive number", &value.into())) }
        };
        Ok(match kind {
            "linear" => RopeScaling::Linear(positive("factor")?),
            "each" => {
                let list = node.get("factors").and_then(Value::as_array).cloned().unwrap_or_default();
                let factors: Option<Vec<f32>> = list.iter().map(|v| Some(v.as_f64()? as f32)).collect();
                let good = |factors: &Vec<f32>| factors.iter().all(|f| f.is_finite() && *f > 0.0);
                let factors = factors.filter(good);
                RopeScaling::Each(factors.ok_or_else(|| node.wrong("factors", "positive numbers", &list.into()))?)
            }
            _ => {
                let (low, high) = (positive("low_freq_factor")?, positive("high_freq_factor")?);
                if low >= high {
                    return Err(node.contradiction("low_freq_factor", format!("{low} is not below high {high}")));
                }
                let original = positive("original_max_position_embeddings")?;
                RopeScaling::Llama3 { factor: positive("factor")?, low, high, original }
            }
        })
    }
}

/// The value that all places which have `key` agree on.
fn agreed<'a, T, F>(places: &[Node<'a>], key: &str, read: F) -> Result<Option<T>>
where
    T: PartialEq + std::fmt::Debug,
    F: Fn(&Node<'a>, &str) -> Result<Option<T>>,
{
    let mut found: Option<(T, String)> = None;
    for place in places {
        let Some(value) = read(place, key)? else { continue };
        match &found {
            Some((first, path)) if *first != value => {
                return Err(place.contradiction(key, format!("{value:?} disagrees with {path} {first:?}")));
            }
            Some(_) => {}
            None => found = Some((value, place.path(key))),
        }
    }
    Ok(found.map(|(value, _)| value))
}

fn section(node: &Node, key: &str) -> Result<Option<[usize; 3]>> {
    let Some(list) = node.indexes(key, super::MAX_HEAD_DIM)? else { return Ok(None) };
    match <[usize; 3]>::try_from(list) {
        Ok(section) => Ok(Some(section)),
        Err(list) => Err(node.wrong(key, "three integers (t, h, w)", &Value::from(list))),
    }
}
