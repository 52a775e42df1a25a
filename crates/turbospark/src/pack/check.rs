//! How near a packed model is to its source: distributions over a built-in text and picture.

use crate::{Model, Prompt, Result};

/// How two models agree over the rows of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Rows compared.
    pub rows: usize,
    /// Mean Kullback-Leibler divergence of the packed model's distribution from the source's, in nats.
    pub divergence: f64,
    /// Share of rows with the same likeliest token.
    pub top1: f64,
}

/// What both models read: prose, figures, a list, some code and a second language.
const TEXT: &str = "The harbour office opens at seven. Ships that wait outside are called in by radio, one after \
    the other, and each is given a berth, a pilot and two tugs. On an ordinary day 41 ships come and go; in October \
    it was 1,283 in all, 6.4 % more than a year before.\n\n1. Check the draught.\n2. Check the wind.\n3. Call the \
    pilot.\n\nfn main() {\n    let total: u32 = (1..=10).sum();\n    println!(\"{total}\");\n}\n\nDer Regen liess \
    gegen Abend nach, und die Strassen glaenzten im Licht der Laternen.";

/// A page that the examples show, too.
const PAGE: &[u8] = include_bytes!("../../../../examples/receipt.png");

/// Holds `packed` against `source`, of which it was packed.
///
/// # Errors
/// What either model refuses.
pub fn check(source: &Model, packed: &Model) -> Result<Agreement> {
    let mut sum = Agreement { rows: 0, divergence: 0.0, top1: 0.0 };
    for with_image in [false, true] {
        if with_image && !(source.config().has_vision() && source.has_chat_template()) {
            continue;
        }
        let [a, b] = [source, packed].map(|model| {
            let prompt = prompt(model, with_image)?;
            model.prompt_logits(&prompt)
        });
        let vocabulary = source.config().text.vocab_size;
        for (p, q) in a?.chunks_exact(vocabulary).zip(b?.chunks_exact(vocabulary)) {
            let (divergence, same) = compare(p, q);
            sum.rows += 1;
            sum.divergence += divergence;
            sum.top1 += f64::from(u8::from(same));
        }
    }
    let rows = sum.rows.max(1) as f64;
    Ok(Agreement { divergence: sum.divergence / rows, top1: sum.top1 / rows, ..sum })
}

fn prompt(model: &Model, with_image: bool) -> Result<Prompt> {
    if !model.has_chat_template() {
        return model.prompt_from_ids(model.tokenizer().encode_text(TEXT)?, Vec::new(), Vec::new());
    }
    let builder = model.prompt();
    let builder = if with_image { builder.image(PAGE) } else { builder };
    builder.text(TEXT).build()
}

/// Divergence of `q` from `p`, both logits, and whether their maxima agree.
fn compare(p: &[f32], q: &[f32]) -> (f64, bool) {
    let log_sum = |x: &[f32]| {
        let most = x.iter().copied().fold(f32::MIN, f32::max);
        f64::from(most) + x.iter().map(|v| f64::from(v - most).exp()).sum::<f64>().ln()
    };
    let (p_sum, q_sum) = (log_sum(p), log_sum(q));
    let term = |(a, b): (&f32, &f32)| {
        let (a, b) = (f64::from(*a) - p_sum, f64::from(*b) - q_sum);
        a.exp() * (a - b)
    };
    let best = |x: &[f32]| (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b]));
    (p.iter().zip(q).map(term).sum(), best(p) == best(q))
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn equal_distributions_do_not_diverge_and_others_do() {
        assert_eq!(compare(&[1.0, 2.0], &[1.0, 2.0]), (0.0, true));
        let (divergence, same) = compare(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        // (1/2) ln((1/2) / (1/4)) + (1/2) ln((1/2) / (3/4))
        assert!((divergence - 0.5 * (2f64.ln() + (2.0f64 / 3.0).ln())).abs() < 1e-6 && same);
    }
}
