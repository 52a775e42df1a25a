//! Keys and values in 8 bits: how near the logits stay, and that nothing else changes.

mod support;

use support::{bits, config, furthest, load};
use turbospark::KvFormat;
use turbospark::trace::trace_matching;
use turbospark_device::{Device, Precision, ReferenceDevice};
use turbospark_models::{Cache, CacheShape};
use turbospark_tensor::DType;
use turbospark_testkit::{Class, Index, fixtures, read};

/// The logits of the golden prompts, images and videos among them, on `device` with 8-bit keys and values: within the
/// tolerance of 16-bit arithmetic, four times the error that the reference itself makes in bf16.
fn golden_logits_stay_near(device: &dyn Device) {
    let index = Index::load(&fixtures()).unwrap();
    for family in support::FAMILIES {
        let out = tempfile::tempdir().unwrap();
        let wanted = |path: &str| path.starts_with(&format!("{family}/text_"));
        let report = trace_matching(&fixtures(), out.path(), device, KvFormat::Q8, &wanted, &mut |_| {}).unwrap();
        assert!(report.files.len() > 5);
        let (mut worst, mut moved) = (0.0, false);
        for file in &report.files {
            let [golden, got] = [fixtures().join(file), out.path().join(file)].map(|path| read(&path).unwrap());
            for name in ["logits_last", "logits_at"] {
                let [golden, got] = [&golden, &got].map(|tensors| tensors[name].as_f32().unwrap());
                let share = f64::from(furthest(got, golden)) / index.tolerance(file, name, Class::LowP);
                worst = f64::max(worst, share);
                moved |= bits(got) != bits(golden);
            }
        }
        println!("{}: {family}: logits within {worst:.2} x tolerance", device.name());
        assert!(worst <= 1.0, "{family}: logits off by {worst:.2} x tolerance");
        assert!(moved, "the cache is not quantised");
    }
}

#[test]
fn golden_logits_stay_near_on_the_reference_device() {
    golden_logits_stay_near(&ReferenceDevice);
}

#[test]
fn bytes_are_those_of_blocks() {
    let config = config("qwen3_vl").text;
    let shape = |kv: KvFormat| CacheShape::for_sequences(2, 65, kv.dtype(Precision::Auto));
    let [f32, f16, q8] = [KvFormat::F32, KvFormat::Auto, KvFormat::Q8].map(|kv| shape(kv).bytes_per_token(&config));
    assert_eq!((32 * f16, 32 * q8), (16 * f32, 34 * f32 / 4));
    assert_eq!(shape(KvFormat::Q8).bytes(&config), 2 * 128 * q8);
    let exact = KvFormat::Auto.dtype(Precision::F32);
    assert_eq!((exact, KvFormat::Q8.dtype(Precision::F32)), (DType::F32, DType::Q8_0));
}

#[test]
fn heads_that_are_no_whole_blocks_are_refused_when_the_cache_is_made() {
    let device = &ReferenceDevice;
    let mut config = load("qwen3_vl", device).config.text;
    config.head_dim = 40;
    let made = |dtype| Cache::new(device, &config, CacheShape::for_sequences(1, 64, dtype)).map(|_| ());
    let said = made(DType::Q8_0).unwrap_err().to_string();
    assert_eq!(said, "head_dim 40 of config.json is no multiple of 32, as Q8_0 keys and values need; use f16");
    made(DType::F16).unwrap();
}

#[cfg(feature = "device-cpu")]
mod cpu {
    use turbospark::config::LayerKind;
    use turbospark::{Cancel, LoadOptions, Model, Prompt, Session};
    use turbospark_device_cpu::{CpuDevice, CpuOptions};
    use turbospark_testkit::shared;

    use super::*;

    #[test]
    fn golden_logits_stay_near() {
        let options = CpuOptions { threads: Some(2), precision: Precision::F32, isa: None };
        super::golden_logits_stay_near(&CpuDevice::new(options).unwrap());
    }

    fn prefill(session: &mut Session, prompt: &Prompt) -> (usize, Vec<u32>) {
        let done = session.prefill(prompt, &Cancel::new(), &mut |_| ()).unwrap();
        (done.reused_tokens, bits(&done.logits))
    }

    /// A prompt that begins as an earlier one, image and all, and two sequences decoded in one pass.
    fn sessions_agree(open: impl Fn(&LoadOptions) -> Model) {
        let at = |kv| open(&LoadOptions { kv, context: Some(1024), ..LoadOptions::default() });
        let model = at(KvFormat::Q8);
        let attention = model.config().text.layer_kinds.iter().filter(|&&k| k == LayerKind::FullAttention).count();
        assert!(attention > 0 && model.cache_bytes() < at(KvFormat::Auto).cache_bytes());
        let page = fixtures().join("../../examples/receipt.png");
        let ask = |text| model.prompt().image_file(&page).text(text).build().unwrap();
        let (first, second) = (ask("What is the total?"), ask("Who was paid, and when was that?"));

        let (mut fresh, mut reused) = (model.session(), model.session());
        let want = prefill(&mut fresh, &second);
        prefill(&mut reused, &first);
        let got = prefill(&mut reused, &second);
        assert!(want.0 == 0 && got.0 >= 64 && got.1 == want.1, "{} tokens reused", got.0);

        let mut other = model.session();
        prefill(&mut other, &first);
        for token in [5, 6, 7] {
            let alone = fresh.decode(token).unwrap();
            let both = Session::decode_together(&mut [(&mut other, 9), (&mut reused, token)]).unwrap();
            assert!(bits(&both[1]) == bits(&alone), "token {token} differs in company");
        }
    }

    #[test]
    #[cfg(feature = "embedded-model")]
    fn a_reused_prefix_and_company_change_no_bit() {
        sessions_agree(|options| Model::embedded(options).unwrap());
    }

    #[test]
    fn a_reused_prefix_and_company_change_no_bit_of_a_hybrid() {
        match shared("models/tiny-ocr-qwen3_5") {
            Some(folder) => sessions_agree(|options| Model::open(&folder, options).unwrap()),
            None => println!("skipped: tiny-ocr-qwen3_5 is not part of the project"),
        }
    }
}
