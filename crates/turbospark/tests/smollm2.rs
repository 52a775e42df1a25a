//! SmolLM2-135M-Instruct in Q4_1, held against what llama.cpp made of the same file.
//!
//! `data/smollm2.json` is what `scripts/smollm2.py` recorded, from the file as it is and with its weights written out
//! as F32. llama.cpp rounds the inputs of products with quantised weights to eight bits, so only the second is what
//! the file means. The model itself is not in this repository; the script says where it is.
#![cfg(feature = "device-cpu")]

use serde::Deserialize;
use turbospark::device::Precision;
use turbospark::text::{Message, Role};
use turbospark::{Cancel, ChatOptions, LoadOptions, Model, Session};

#[derive(Deserialize)]
struct Record {
    /// The ids whose logits were kept.
    sampled: Vec<usize>,
    prompts: Vec<Asked>,
    page: Page,
}

#[derive(Deserialize)]
struct Asked {
    text: String,
    /// The user's turn, where the text is that of the chat template.
    asked: Option<String>,
    ids: Vec<u32>,
    stored: Answer,
    f32: Answer,
}

#[derive(Deserialize)]
struct Answer {
    best: Vec<(usize, f32)>,
    sampled: Vec<f32>,
    mean: f64,
    logsumexp: f64,
    ids: Vec<u32>,
    /// By how much each id led the next best.
    leads: Vec<f32>,
}

#[derive(Deserialize)]
struct Page {
    text: String,
    ids: Vec<u32>,
    stored: Nll,
    f32: Nll,
}

#[derive(Deserialize)]
struct Nll {
    nll: f64,
}

fn record() -> Record {
    serde_json::from_str(include_str!("data/smollm2.json")).unwrap()
}

fn open(precision: Precision) -> Option<Model> {
    let Some(path) = std::env::var_os("TURBOSPARK_SMOLLM2") else {
        eprintln!("skipped: TURBOSPARK_SMOLLM2 names no SmolLM2-135M-Instruct.Q4_1.gguf");
        return None;
    };
    Some(Model::open(path, &LoadOptions { precision, ..LoadOptions::default() }).unwrap())
}

fn prefill(session: &mut Session, ids: &[u32]) -> Vec<f32> {
    let prompt = session.model().prompt_from_ids(ids.to_vec(), Vec::new(), Vec::new()).unwrap();
    session.clear();
    session.prefill(&prompt, &Cancel::new(), &mut |_| ()).unwrap().logits
}

fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.unwrap() as u32
}

fn logsumexp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    largest + logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum::<f64>().ln()
}

/// Mean negative log-likelihood of every id but the first, read one after the other.
fn nll(session: &mut Session, ids: &[u32]) -> f64 {
    let mut logits = prefill(session, &ids[..1]);
    let mut sum = 0.0;
    for &id in &ids[1..] {
        sum += logsumexp(&logits) - f64::from(logits[id as usize]);
        logits = session.decode(id).unwrap();
    }
    sum / (ids.len() - 1) as f64
}

/// The largest difference from what was recorded of a row of logits.
fn difference(logits: &[f32], answer: &Answer, sampled: &[usize]) -> f64 {
    let kept = answer.best.iter().copied().chain(sampled.iter().copied().zip(answer.sampled.iter().copied()));
    let single = kept.map(|(id, logit)| f64::from((logits[id] - logit).abs())).fold(0.0, f64::max);
    let mean = logits.iter().map(|&l| f64::from(l)).sum::<f64>() / logits.len() as f64;
    single.max((mean - answer.mean).abs()).max((logsumexp(logits) - answer.logsumexp).abs())
}

/// How many ids are the recorded ones, and by how much the first other one was behind there.
fn agreement(ids: &[u32], answer: &Answer) -> (usize, Option<f32>) {
    let equal = ids.iter().zip(&answer.ids).take_while(|(a, b)| a == b).count();
    (equal, answer.leads.get(equal).copied())
}

#[test]
fn texts_and_conversations_have_the_recorded_ids() {
    let Some(model) = open(Precision::Auto) else { return };
    let record = record();
    for prompt in &record.prompts {
        assert_eq!(model.tokenizer().encode_template(&prompt.text).unwrap(), prompt.ids, "{:?}", prompt.text);
        if let Some(asked) = &prompt.asked {
            let messages = [Message::new(Role::User, asked.as_str())];
            let made = model.prompt_with_pictures(&messages, Vec::new(), &ChatOptions::default()).unwrap();
            assert_eq!(made.ids(), prompt.ids, "{asked:?}");
        } else {
            assert_eq!(model.prompt_from_text(&prompt.text).unwrap().ids(), prompt.ids);
        }
    }
    assert_eq!(model.tokenizer().encode_text(&record.page.text).unwrap(), record.page.ids);
}

#[test]
fn logits_and_answers_are_those_of_the_weights() {
    let Some(model) = open(Precision::F32) else { return };
    let record = record();
    let mut session = model.session();
    let (mut exact, mut rounded) = (0.0_f64, 0.0_f64);
    let (mut equal, mut equal_rounded, mut all) = (0, 0, 0);
    for prompt in &record.prompts {
        let mut logits = prefill(&mut session, &prompt.ids);
        exact = exact.max(difference(&logits, &prompt.f32, &record.sampled));
        rounded = rounded.max(difference(&logits, &prompt.stored, &record.sampled));
        let mut ids = Vec::new();
        for _ in &prompt.f32.ids {
            ids.push(argmax(&logits));
            logits = session.decode(ids[ids.len() - 1]).unwrap();
        }
        let (same, behind) = agreement(&ids, &prompt.f32);
        assert!(behind.is_none_or(|lead| lead < 0.01), "{:?}: other after {same} ids, by {behind:?}", prompt.text);
        (equal, all) = (equal + same, all + ids.len());
        let (same, behind) = agreement(&ids, &prompt.stored);
        equal_rounded += same;
        assert!(behind.is_none_or(|lead| lead < 1.0), "{:?}: other after {same} ids, by {behind:?}", prompt.text);
    }
    println!("logits differ by at most {exact:.1e} from F32, {rounded:.1e} from Q4_1");
    println!("of {all} ids, {equal} are those of F32 and {equal_rounded} those of Q4_1 up to the first other one");
    assert!(exact < 1e-3, "{exact}");
    assert!(rounded < 1.0, "{rounded}");
}

#[test]
fn rounded_inputs_move_the_logits_no_further_than_llama_cpps_do() {
    let Some(model) = open(Precision::Auto) else { return };
    let record = record();
    let mut session = model.session();
    let (mut ours, mut theirs, mut count) = (0.0_f64, 0.0_f64, 0);
    for prompt in &record.prompts {
        let logits = prefill(&mut session, &prompt.ids);
        for ((&id, &exact), &rounded) in record.sampled.iter().zip(&prompt.f32.sampled).zip(&prompt.stored.sampled) {
            ours += f64::from(logits[id] - exact).powi(2);
            theirs += f64::from(rounded - exact).powi(2);
            count += 1;
        }
    }
    let [ours, theirs] = [ours, theirs].map(|sum| (sum / f64::from(count)).sqrt());
    println!("rms of {count} logits' differences from F32: {ours:.4}, llama.cpp's {theirs:.4}");
    assert!(ours < 1.25 * theirs);
}

#[test]
fn the_perplexity_of_a_page_is_the_recorded_one() {
    let page = record().page;
    let per_cent = |a: f64, b: f64| 100.0 * ((a - b).exp() - 1.0);
    for (precision, tolerance) in [(Precision::F32, 0.01), (Precision::Auto, 0.5)] {
        let Some(model) = open(precision) else { return };
        let ours = nll(&mut model.session(), &page.ids);
        let (exact, rounded) = (per_cent(ours, page.f32.nll), per_cent(ours, page.stored.nll));
        println!(
            "{precision:?}: perplexity {:.4} of {} tokens; F32 {:.4} ({exact:+.4} %), Q4_1 {:.4} ({rounded:+.4} %)",
            ours.exp(),
            page.ids.len(),
            page.f32.nll.exp(),
            page.stored.nll.exp(),
        );
        assert!(exact.abs() < tolerance && rounded.abs() < 0.5, "{precision:?}");
    }
}
