//! A kernel: WGSL text, what it binds, and the constants that it is compiled with.
//!
//! The text of a kernel declares no bindings: which buffers are only read depends on what else the same dispatch
//! writes, and how elements are stored on the tensors at hand. Both are written in front of the text.

use std::fmt::Write;

use turbospark_tensor::DType;

use crate::emulated::emulate;
use crate::template::expand;

/// The text of a kernel, with an entry `main`.
#[derive(Debug)]
pub(crate) struct Source {
    /// For labels and errors; no two kernels share one.
    pub name: &'static str,
    /// WGSL without bindings. Its parameters are a `var<immediate>`.
    pub text: &'static str,
    /// Functions that it shares with others, put before it.
    pub includes: &'static [&'static str],
}

/// How a kernel sees a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(dead_code, reason = "for kernels that load whole vectors")]
pub(crate) enum Form {
    /// `array<f32>`.
    F32,
    /// `array<vec4<f32>>`.
    Vec4,
    /// `array<vec4<f16>>`.
    Half4,
    /// `array<f32>` that other workgroups of the run read after it was written.
    Coherent,
    /// `array<u32>`.
    U32,
    /// `array<vec4<u32>>`.
    UVec4,
    /// `array<i32>`.
    I32,
    /// `array<atomic<u32>>`; counts as written.
    Atomic,
    /// Bytes, with `NAME_byte(at)`, `NAME_half(at)` and `NAME_word(at)`, which take any byte, aligned or not.
    Bytes,
    /// Bytes of a float type, with `NAME_f(at, i)` besides: element `i` of the tensor that starts at byte `at`; and
    /// `NAME_f4(at, i)`, that and the three after it; `NAME_a4(w)`, the four elements that begin at word `w`.
    Stored(DType),
}

/// What a compiled kernel depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub name: &'static str,
    /// Name, form and whether it is written.
    pub bindings: Vec<(&'static str, Form, bool)>,
    pub constants: Vec<(&'static str, u32)>,
    /// Whether the text uses the type `f16`.
    pub f16: bool,
    pub matrices: Matrices,
    /// Whether the hardware widens every f16 exactly.
    pub hard_half: bool,
}

/// Whether a kernel uses matrix units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Matrices {
    #[default]
    No,
    Units,
    /// It is written for them, and plain arithmetic stands for them.
    Emulated,
}

/// The whole text of a kernel.
pub(crate) fn compose(source: &Source, key: &Key) -> String {
    let mut text = String::new();
    if key.matrices == Matrices::Units {
        text += "enable wgpu_cooperative_matrix;\n";
    }
    // What tiles in workgroup memory are made of.
    text += if key.f16 { F16 } else { F32 };
    let _ = writeln!(text, "const HARD_HALF: u32 = {}u;", u32::from(key.hard_half));
    for (name, value) in &key.constants {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    }
    for (i, &(name, form, written)) in key.bindings.iter().enumerate() {
        let access = if written || form == Form::Atomic { "read_write" } else { "read" };
        let element = match form {
            Form::F32 | Form::Coherent => "f32",
            Form::Vec4 => "vec4<f32>",
            Form::Half4 => "vec4<f16>",
            Form::UVec4 => "vec4<u32>",
            Form::I32 => "i32",
            Form::Atomic => "atomic<u32>",
            Form::U32 | Form::Bytes | Form::Stored(_) => "u32",
        };
        let coherent = if form == Form::Coherent { "@coherent " } else { "" };
        let _ = writeln!(text, "@group(0) @binding({i}) {coherent}var<storage, {access}> {name}: array<{element}>;");
        if matches!(form, Form::Bytes | Form::Stored(_)) {
            text += &BYTES.replace("NAME", name);
        }
        if let Form::Stored(dtype) = form {
            let element = match dtype {
                DType::F32 => "bitcast<f32>(NAME_word(at + 4u * i))",
                DType::BF16 => "bitcast<f32>(NAME_half(at + 2u * i) << 16u)",
                DType::F16 => "half_to_f32(NAME_half(at + 2u * i))",
                other => unreachable!("{other} is no float type"),
            };
            let four = match dtype {
                DType::F32 => "vec4(NAME_f(at, i), NAME_f(at, i + 1u), NAME_f(at, i + 2u), NAME_f(at, i + 3u))",
                _ => "NAME_wide(NAME_word(at + 2u * i), NAME_word(at + 2u * i + 4u))",
            };
            let _ = writeln!(text, "fn NAME_f(at: u32, i: u32) -> f32 {{ return {element}; }}");
            let wide = match dtype {
                DType::F32 => "",
                DType::BF16 => BF16_WIDE,
                _ => F16_WIDE,
            };
            text += wide;
            let _ = writeln!(text, "fn NAME_f4(at: u32, i: u32) -> vec4<f32> {{ return {four}; }}");
            let aligned = match dtype {
                DType::F32 => "bitcast<vec4<f32>>(vec4(NAME[w], NAME[w + 1u], NAME[w + 2u], NAME[w + 3u]))",
                _ => "NAME_wide(NAME[w], NAME[w + 1u])",
            };
            let _ = writeln!(text, "fn NAME_a4(w: u32) -> vec4<f32> {{ return {aligned}; }}");
            text = text.replace("NAME", name);
        }
    }
    text += include_str!("shaders/common.wgsl");
    for part in source.includes.iter().chain([&source.text]) {
        text += &expand(part, &key.constants);
    }
    if key.matrices == Matrices::Emulated { emulate(&text) } else { text }
}

const F32: &str = "alias Small = f32;\nfn small(x: f32) -> f32 { return x; }\n";

// What f16 can't hold becomes the largest that it can, and no infinity.
const F16: &str =
    "enable f16;\nalias Small = f16;\nfn small(x: f32) -> f16 { return f16(clamp(x, -65504.0, 65504.0)); }\n";

const BF16_WIDE: &str = "
fn NAME_wide(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}
";

const F16_WIDE: &str = "
fn NAME_wide(a: u32, b: u32) -> vec4<f32> {
    if HARD_HALF == 1u { return vec4(unpack2x16float(a), unpack2x16float(b)); }
    return vec4(half_to_f32(a & 0xffffu), half_to_f32(a >> 16u), half_to_f32(b & 0xffffu), half_to_f32(b >> 16u));
}
";

const BYTES: &str = "
fn NAME_word(at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    let low = NAME[at >> 2u];
    if shift == 0u { return low; }
    return (low >> shift) | (NAME[(at >> 2u) + 1u] << (32u - shift));
}
fn NAME_half(at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    var v = NAME[at >> 2u] >> shift;
    if shift == 24u { v |= NAME[(at >> 2u) + 1u] << 8u; }
    return v & 0xffffu;
}
fn NAME_byte(at: u32) -> u32 {
    return (NAME[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}
";
