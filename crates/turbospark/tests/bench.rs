//! The benchmark's own arithmetic, and its checkpoints. No time is asserted anywhere.
#![cfg(feature = "device-cpu")]

use std::path::Path;

use turbospark::bench::work::{EncodeFlops, TokenFlops};
use turbospark::bench::{BenchOptions, Shape, bench, build_checkpoint, median};
use turbospark::config::Config;
use turbospark::weights::Entry;
use turbospark::{Cancel, Error, LoadOptions, Model, Prompt, PromptParts};

fn config(name: &str) -> Config {
    Config::parse(&Shape::named(name).unwrap().config.to_string()).unwrap()
}

/// A shape of a fixture's sizes.
fn fixture(family: &'static str) -> Shape {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/fixtures");
    let text = std::fs::read_to_string(root.join(family).join("checkpoint/config.json")).unwrap();
    Shape { name: family, config: serde_json::from_str(&text).unwrap() }
}

fn build(shape: &Shape, folder: &Path) -> turbospark::Result<std::path::PathBuf> {
    build_checkpoint(shape, folder, &Cancel::new(), &mut |_, _| ())
}

#[test]
fn every_named_shape_is_a_configuration_that_this_build_reads() {
    for name in Shape::names() {
        config(name);
    }
    assert!(Shape::named("qwen3-vl").is_none());
}

#[test]
fn operations_of_an_image_are_those_counted_by_hand() {
    let vision = config("qwen3-vl-2b").vision.unwrap();
    let flops = EncodeFlops::of(&vision, [1, 64, 64]);
    assert_eq!(flops.patch_embedding, 12_884_901_888.0); // 2 * 4096 * 1536 * 1024
    assert_eq!(flops.linear, 2_473_901_162_496.0); // 24 * 2 * 4096 * (4 * 1024^2 + 2 * 1024 * 4096)
    assert_eq!(flops.attention, 1_649_267_441_664.0); // 24 * 4 * 4096^2 * 1024
    assert_eq!(flops.mergers, 206_158_430_208.0); // 4 * 2 * 1024 * (4096^2 + 4096 * 2048)
    assert_eq!(flops.total(), 4_342_211_936_256.0);
    // Two frames don't see each other.
    assert_eq!(EncodeFlops::of(&vision, [2, 64, 64]).total(), 2.0 * flops.total());
}

#[test]
fn operations_of_tokens_are_those_counted_by_hand() {
    let dense = config("qwen3-vl-2b");
    let flops = TokenFlops::of(&dense, 0, 512, 1);
    assert_eq!(flops.linear, 2.0 * 512.0 * 1_409_286_144.0); // 28 * (2048 * 6144 + 3 * 2048 * 6144)
    assert_eq!(flops.attention, 30_123_491_328.0); // 28 * 4 * 2048 * (512 * 513 / 2)
    assert_eq!((flops.delta, flops.head), (0.0, 622_329_856.0)); // 2 * 151936 * 2048
    let halves = [TokenFlops::of(&dense, 0, 256, 0), TokenFlops::of(&dense, 256, 256, 1)];
    assert_eq!(halves[0].total() + halves[1].total(), flops.total());

    let hybrid = TokenFlops::of(&config("qwen3.5-0.8b"), 0, 1, 0);
    // 6 * 1024 * 7168 + 18 * 1024 * 10272 + 24 * 3 * 1024 * 3584
    assert_eq!(hybrid.linear, 2.0 * 497_614_848.0);
    assert_eq!(hybrid.attention, 49_152.0); // 6 * 4 * 2048
    assert_eq!(hybrid.delta, 33_914_880.0); // 18 * (2 * 6144 * 4 + 7 * 16 * 128 * 128)

    let routed = TokenFlops::of(&config("qwen3-vl-30b-a3b"), 0, 1, 0);
    // 48 * (2048 * (4096 + 2 * 512 + 4096) + 2048 * 128 + 8 * 3 * 2048 * 768)
    assert_eq!(routed.linear, 2.0 * 2_730_491_904.0);
}

#[test]
fn random_checkpoints_of_every_family_run_and_stay_finite() {
    let folder = tempfile::tempdir().unwrap();
    for family in ["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"] {
        let path = build(&fixture(family), folder.path()).unwrap();
        let options = BenchOptions {
            images: vec![(96, 64), (64, 64)],
            prefill: vec![70, 3],
            decode: 2,
            depth: 5,
            batch: 2,
            reps: 2,
            ..Default::default()
        };
        let load = options.load(LoadOptions { threads: Some(2), ..Default::default() });
        let model = Model::open(&path, &load).unwrap();
        let report = bench(&model, &options, &mut |_| ()).unwrap();
        assert_eq!(report.encode.iter().map(|e| e.grid_thw).collect::<Vec<_>>(), [[1, 4, 6], [1, 4, 4]]);
        assert_eq!(report.prefill.iter().map(|p| p.tokens).collect::<Vec<_>>(), [70, 3]);
        let decode = report.decode.unwrap();
        assert!(decode.times.len() == 2 && decode.tokens_per_s() > 0.0);
        assert!(report.peak_ops_per_s.unwrap() > 0.0);

        let parts =
            PromptParts { ids: vec![7; 70], positions: (0..70).map(|i| [i; 3]).collect(), ..Default::default() };
        let prompt = Prompt::new(parts, &model.prompt_limits()).unwrap();
        let logits = model.session().prefill(&prompt, &Cancel::new(), &mut |_| ()).unwrap().logits;
        let spread = logits.iter().fold(0f32, |m, x| m.max(x.abs()));
        assert!(logits.iter().all(|x| x.is_finite()) && spread > 0.1, "{family}: largest logit {spread}");
    }
}

/// Bytes of the tensors whose names pass `wanted`.
fn bytes(model: &Model, wanted: impl Fn(&str) -> bool) -> f64 {
    let entries = model.checkpoint().entries().filter(|(name, _)| wanted(name));
    entries.map(|(_, e)| if matches!(e, Entry::Place(_)) { e.length() as f64 } else { 0.0 }).sum()
}

#[test]
fn a_decoded_token_reads_each_weight_once_and_its_share_of_the_experts() {
    let folder = tempfile::tempdir().unwrap();
    for (family, experts, per_row) in [("qwen3_vl", 0.0, 0.0), ("qwen3_5_moe", 8.0, 3.0)] {
        let path = build(&fixture(family), folder.path()).unwrap();
        for batch in [1, 3] {
            let options =
                BenchOptions { images: vec![], prefill: vec![], decode: 1, reps: 1, batch, ..Default::default() };
            let model = Model::open(&path, &options.load(LoadOptions::default())).unwrap();
            let decode = bench(&model, &options, &mut |_| ()).unwrap().decode.unwrap();
            let is_embed = |n: &str| n.contains("embed_tokens") && !model.config().tie_word_embeddings;
            let rest = bytes(&model, |n| !n.contains(".visual.") && !n.contains(".experts.") && !is_embed(n));
            let used = if experts > 0.0 { 1.0 - (1.0f64 - per_row / experts).powi(batch as i32) } else { 0.0 };
            let rows = (batch * model.config().text.hidden_size * 2) as f64;
            let expected = rest + rows + used * bytes(&model, |n| n.contains(".experts."));
            let got = decode.weight_bytes_per_token * batch as f64;
            assert!((got - expected).abs() < 1.0, "{family}, batch {batch}: {got}, expected {expected}");
            assert!(decode.bytes_per_token > decode.weight_bytes_per_token);
        }
    }
}

#[test]
fn a_checkpoint_is_written_once_and_again_only_when_it_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let shape = fixture("qwen3_vl");
    let path = build(&shape, folder.path()).unwrap();
    let weights = path.join("model.safetensors");
    let first = std::fs::read(&weights).unwrap();
    let mut written = 0;
    build_checkpoint(&shape, folder.path(), &Cancel::new(), &mut |_, _| written += 1).unwrap();
    assert_eq!(written, 0, "it was there");
    std::fs::write(&weights, &first[..first.len() / 2]).unwrap();
    build(&shape, folder.path()).unwrap();
    assert!(std::fs::read(&weights).unwrap() == first, "the same bytes each time");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn a_checkpoint_that_is_cancelled_or_has_no_place_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = build_checkpoint(&fixture("qwen3_5"), folder.path(), &cancel, &mut |_, _| ());
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let message = build(&fixture("qwen3_5"), &file).unwrap_err().to_string();
    assert!(message.contains("GB are needed for qwen3_5"), "{message}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = build(&fixture("qwen3_vl"), folder.path()).unwrap();
    let load = LoadOptions { isa: Some("mmx".into()), ..Default::default() };
    let message = Model::open(&path, &load).unwrap_err().to_string();
    assert!(message.contains("\"mmx\"") && message.contains("portable"), "{message}");
    let model = Model::open(&path, &LoadOptions { context: Some(8), ..Default::default() }).unwrap();
    let long = BenchOptions { images: vec![], prefill: vec![9], decode: 0, ..Default::default() };
    assert!(matches!(bench(&model, &long, &mut |_| ()), Err(Error::ContextFull { .. })));
    let none = BenchOptions { reps: 0, ..Default::default() };
    assert!(matches!(bench(&model, &none, &mut |_| ()), Err(Error::Options(_))));
}

#[test]
fn the_median_is_the_middle() {
    let times = |list: &[u64]| list.iter().map(|&s| std::time::Duration::from_secs(s)).collect::<Vec<_>>();
    assert_eq!(
        [median(&times(&[5, 1, 3])), median(&times(&[4, 1, 2, 9])), median(&[])].map(|d| d.as_secs()),
        [3, 3, 0]
    );
}
