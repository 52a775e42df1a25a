//! Kernels as every API gets them: translated, and held against what Metal lacks, since no Mac runs the tests.
#![allow(dead_code, reason = "no file of tests needs all of it")]

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use turbospark_device_wgpu::WgpuDevice;

/// Texts that were looked at.
static SEEN: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Translates every kernel that the device has compiled since the last time.
pub fn check(device: &WgpuDevice) {
    device.kernels().iter().for_each(|(name, kernel)| text(name, kernel));
}

/// Translates a kernel, if it was not yet.
pub fn text(name: &str, text: &str) {
    if !SEEN.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        return;
    }
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    let info = Validator::new(ValidationFlags::all(), capabilities())
        .validate(&module)
        .unwrap_or_else(|e| panic!("{name}: {e:?}\n{text}"));
    let matrices = text.contains("enable wgpu_cooperative_matrix");
    spirv(name, &module, &info, matrices);
    // HLSL has no matrix units here, Metal's are of eight: no other API is offered the others, or workgroups that wait for
    // what others wrote.
    let vulkan = text.contains("@coherent");
    if !matrices && !vulkan {
        hlsl(name, &module, &info);
    }
    if !text.contains("coop_mat16x16") && !vulkan {
        metal(name, &module, &info);
    }
}

fn capabilities() -> Capabilities {
    Capabilities::IMMEDIATES
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP
        | Capabilities::COOPERATIVE_MATRIX
        | Capabilities::MEMORY_DECORATION_COHERENT
}

fn spirv(name: &str, module: &naga::Module, info: &ModuleInfo, matrices: bool) {
    let lang_version = if matrices { (1, 6) } else { (1, 3) };
    let options = spv::Options { lang_version, ..Default::default() };
    spv::write_vec(module, info, &options, None).unwrap_or_else(|e| panic!("{name} as SPIR-V: {e}"));
}

fn hlsl(name: &str, module: &naga::Module, info: &ModuleInfo) {
    let immediates = hlsl::BindTarget { space: 1, ..Default::default() };
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_2,
        fake_missing_bindings: true,
        immediates_target: Some(immediates),
        ..Default::default()
    };
    let (mut out, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let mut writer = hlsl::Writer::new(&mut out, &options, &pipeline);
    writer.write(module, info, None).unwrap_or_else(|e| panic!("{name} as HLSL: {e}"));
}

fn metal(name: &str, module: &naga::Module, info: &ModuleInfo) {
    let options = msl::Options { lang_version: (3, 0), fake_missing_bindings: true, ..Default::default() };
    let (text, _) = msl::write_string(module, info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|e| panic!("{name} as MSL: {e}"));
    refuse(name, &text);
    let entry = &module.entry_points[0];
    let threads: u32 = entry.workgroup_size.iter().product();
    assert!(threads <= 1024, "{name}: Metal has no workgroups of {threads}");
    let shared: u32 = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup)
        .map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx()))
        .sum();
    assert!(shared <= 32 << 10, "{name}: Metal has 32 KiB of workgroup memory, not {shared} bytes");
}

/// What is written as MSL and is none: naga does not notice.
fn refuse(name: &str, text: &str) {
    for (i, _) in text.match_indices("simdgroup_") {
        let word: String = text[i..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let known = ["simdgroup_float8x8", "simdgroup_half8x8", "simdgroup_bfloat8x8"];
        let is_matrix = word.chars().any(|c| c.is_ascii_digit());
        assert!(!is_matrix || known.contains(&&*word), "{name}: Metal has no {word}");
    }
    for lacking in ["double", "long double"] {
        let is_there = text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == lacking);
        assert!(!is_there, "{name}: Metal has no {lacking}");
    }
}

#[test]
#[should_panic(expected = "Metal has no simdgroup_half16x16")]
fn matrices_that_metal_lacks_are_refused() {
    refuse("sixteen", "metal::simdgroup_half16x16 a; simdgroup_multiply_accumulate(a, b, c);");
}
