//! One-line wrong models: each must fail a golden, or the goldens prove less than they seem to.
//!
//! `cargo test --release -p turbospark --features mutants --test mutants`
#![cfg(feature = "mutants")]

#[cfg(feature = "device-wgpu")]
mod support;

use std::collections::BTreeSet;

use turbospark::KvFormat;
use turbospark::trace::trace_matching;
use turbospark_device::{Device, ReferenceDevice};
use turbospark_tensor::mutant::{Mutant, set};
use turbospark_testkit::{Class, Index, fixtures};

/// The goldens that must each fail under a mutant, and the tensor that must be among those that do.
///
/// They are the nearest to the wrong line, so that a failure would name the block. The list is exhaustive: a
/// new mutant does not compile without its golden.
fn caught_by(mutant: Mutant) -> &'static [(&'static str, &'static str)] {
    match mutant {
        Mutant::PatchesInRasterOrder => {
            &[("preprocess/tiny_rgb_odd_75x101", "pixel_values"), ("video/odd5", "pixel_values")]
        }
        Mutant::PatchFrameBeforeChannel => {
            &[("video/odd5", "pixel_values"), ("preprocess/tiny_rgb_odd_75x101", "pixel_values")]
        }
        Mutant::SizeRoundsHalfUp => &[("preprocess/tiny_rgb_half_48x80", "resized_rgb_chw")],
        Mutant::ResizeRowsFirst => &[("preprocess/tiny_rgb_odd_75x101", "resized_rgb_chw")],
        Mutant::ResizeSharperKernel => &[("preprocess/tiny_rgb_odd_75x101", "resized_rgb_chw")],
        Mutant::OrientationIgnored => &[("preprocess/tiny_exif6_80x128", "decoded_rgb")],
        Mutant::AlphaDropped => &[
            ("preprocess/tiny_rgba_70x90", "decoded_rgb_pil_object"),
            ("preprocess/tiny_la_66x66", "decoded_rgb_pil_object"),
            ("preprocess/tiny_palette_trns_72x88", "decoded_rgb_pil_object"),
        ],
        Mutant::VisionRopeOnV => &[("qwen3_vl/vision_image_three", "block.0.attn")],
        Mutant::VisionRopeAxesExchanged => {
            &[("qwen3_vl/vision_image_three", "rope_cos"), ("ops/rope_tables", "vision.sin")]
        }
        Mutant::VisionGeluErf => &[("qwen3_vl/vision_image_three", "block.0.mlp")],
        Mutant::MergerGeluTanh => &[("qwen3_5/vision_image_three", "merged")],
        Mutant::VisionEps => &[("qwen3_vl/vision_image_three", "block.0.attn")],
        Mutant::VisionOneSegment => {
            &[("qwen3_vl/vision_image_three", "block.0.attn"), ("qwen3_5/vision_video_one", "block.0.attn")]
        }
        Mutant::PositionHalfPixel => {
            &[("qwen3_vl/vision_image_three", "pos_embed"), ("ops/vision_positions", "1x4x6.weights")]
        }
        Mutant::DeepstackNormBeforeShuffle => &[("qwen3_vl/vision_image_three", "deepstack.0")],
        Mutant::DeepstackLate => {
            &[("qwen3_vl_moe/text_image_one", "hidden.1"), ("qwen3_vl/text_image_three", "hidden.1")]
        }
        Mutant::DeepstackAtBlockNumbers => {
            &[("qwen3_vl/text_image_three", "hidden.2"), ("qwen3_vl_moe/text_image_one", "hidden.1")]
        }
        Mutant::DeepstackReversed => &[("qwen3_vl/text_image_three", "hidden.1")],
        Mutant::MropeContiguous => &[
            ("qwen3_vl/text_image_three", "k_cache.0"),
            ("qwen3_5/text_image_three", "k_cache.3"),
            ("ops/rope_tables", "small.qwen3_vl.cos"),
        ],
        // Not in the rope tables of the published sizes: there the tail that it moves barely turns.
        Mutant::MropeNoLimit => &[("qwen3_vl/text_image_three", "k_cache.0")],
        Mutant::ImagePositionsPlain => {
            &[("qwen3_vl/text_image_one", "k_cache.0"), ("qwen3_5/text_image_one", "k_cache.3")]
        }
        Mutant::ClockByTokens => {
            &[("qwen3_vl/text_image_three", "k_cache.0"), ("qwen3_5/text_image_three", "k_cache.3")]
        }
        Mutant::RopeDeltaZero => {
            &[("qwen3_vl/text_image_three", "generated_logits"), ("qwen3_5/text_image_three", "generated_logits")]
        }
        Mutant::NoHeadNorm => &[("qwen3_vl/text_text_64", "k_cache.0")],
        Mutant::NormWithoutOne => &[("qwen3_5/text_text_3", "mixer.0"), ("qwen3_5_moe/text_text_3", "final_norm")],
        Mutant::GateAsHalves => &[("qwen3_5/text_text_3", "mixer.3")],
        Mutant::NoOutputGate => &[("qwen3_5/text_text_3", "mixer.3")],
        Mutant::KvHeadsInterleaved => &[("qwen3_vl/text_text_64", "mixer.0"), ("qwen3_5/text_text_3", "mixer.3")],
        Mutant::DeltaHeadsTiled => &[("qwen3_5/gdn_65", "core")],
        Mutant::DeltaGateBeforeNorm => &[("qwen3_5/gdn_65", "out"), ("ops/norms", "rms_gated")],
        Mutant::ConvTapsReversed => &[("qwen3_5/gdn_65", "conv_out")],
        Mutant::ConvStateNotCarried => &[("qwen3_5/gdn_70_60", "core"), ("qwen3_5/gdn_5_1_1_1_64_2", "conv_state")],
        Mutant::DeltaStateNotCarried => {
            &[("qwen3_5/gdn_70_60", "core"), ("qwen3_5/gdn_5_1_1_1_64_2", "recurrent_state")]
        }
        Mutant::DeltaNoDtBias => &[("qwen3_5/gdn_65", "g"), ("qwen3_5_moe/gdn_65", "g")],
        Mutant::TopKNotNormalised => {
            &[("qwen3_vl_moe/moe_layer1", "router_weights"), ("qwen3_5_moe/moe_layer1", "router_weights")]
        }
        Mutant::GateUpExchanged => &[
            ("qwen3_vl_moe/moe_layer1", "experts_out"),
            ("qwen3_5_moe/moe_layer1", "experts_out"),
            ("qwen3_vl/text_text_64", "mlp.0"),
        ],
        Mutant::SharedExpertUngated => &[("qwen3_5_moe/moe_layer1", "out")],
        // Of foreign formats, which the goldens don't have: `tests/formats.rs` and `tests/gguf.rs` catch them.
        Mutant::NibblesSwapped
        | Mutant::ZeroPointOneOff
        | Mutant::ScalesNotTurned
        | Mutant::NormShiftedTwice
        | Mutant::RowsNotUnpermuted
        | Mutant::TiledHeadsIgnored
        | Mutant::FramesExchanged => &[],
    }
}

/// Reruns cases on a device and gives the tensors that fail. The mutants of ops live on the reference device.
fn failing(device: &dyn Device, cases: &BTreeSet<String>) -> BTreeSet<String> {
    let out = tempfile::tempdir().unwrap();
    trace_matching(&fixtures(), out.path(), device, KvFormat::Auto, &|p| cases.contains(p), &mut |_| {}).unwrap();
    let index = Index::load(&fixtures()).unwrap();
    let compared = |case: &String| {
        let compared = index.compare(out.path(), case, Class::F32).unwrap();
        assert!(compared.compared > 0, "{case}: nothing was compared");
        compared.failures.into_iter().map(|f| format!("{} {}", f.file, f.tensor))
    };
    cases.iter().flat_map(compared).collect()
}

fn file(case: &str) -> String {
    format!("{case}.safetensors")
}

/// Those that are wrong lines of ops, and not of the order of ops.
const OF_OPS: [Mutant; 8] = [
    Mutant::KvHeadsInterleaved,
    Mutant::DeltaHeadsTiled,
    Mutant::DeltaGateBeforeNorm,
    Mutant::ConvTapsReversed,
    Mutant::ConvStateNotCarried,
    Mutant::DeltaStateNotCarried,
    Mutant::DeltaNoDtBias,
    Mutant::TiledHeadsIgnored,
];

fn each_is_caught(device: &dyn Device, mutants: &[Mutant]) {
    set(None);
    let all = mutants.iter().flat_map(|&m| caught_by(m)).map(|(case, _)| file(case)).collect();
    let wrong = failing(device, &all);
    assert!(wrong.is_empty(), "{}: without a mutant these fail: {wrong:?}", device.name());

    let mut alive = Vec::new();
    for &mutant in mutants {
        let goldens = caught_by(mutant);
        set(Some(mutant));
        let failing = failing(device, &goldens.iter().map(|(case, _)| file(case)).collect());
        set(None);
        println!("{}: {mutant:?}: {} tensors off", device.name(), failing.len());
        for (case, tensor) in goldens {
            if !failing.contains(&format!("{} {tensor}", file(case))) {
                alive.push(format!("{mutant:?}: {case} {tensor} still passes (off: {failing:?})"));
            }
        }
    }
    assert!(alive.is_empty(), "{}:\n{}", device.name(), alive.join("\n"));
    println!("{}: {} mutants, each caught", device.name(), mutants.len());
}

/// One test: the switch is the process's.
#[test]
fn every_mutant_fails_the_goldens_that_are_to_catch_it() {
    each_is_caught(&ReferenceDevice, Mutant::ALL);
    #[cfg(feature = "device-wgpu")]
    if let Some(gpu) = support::gpu(turbospark_device::Precision::F32) {
        // What a picture is before the device sees it was tried above.
        let of_pictures = |m: &Mutant| caught_by(m.to_owned()).iter().all(|(case, _)| case.starts_with("preprocess/"));
        let rest = Mutant::ALL.iter().filter(|m| !OF_OPS.contains(m) && !of_pictures(m));
        each_is_caught(&gpu, &rest.copied().collect::<Vec<_>>());
    }
}
