//! Every kernel is validated and translated to the languages of all APIs.

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use turbospark_device::op::Matmul;
use turbospark_device::{Device, Op};
use turbospark_tensor::{Code, DType, ScaledForm};

use super::format::Format;
use super::kernel::{Routed, Shape, Variant};
use super::matrix::Units;
use super::normed::Kind;
use crate::kernel::{Form, Key, Matrices, compose};
use crate::plan::Plan;

fn formats() -> Vec<Format> {
    let plain = [DType::F32, DType::F16, DType::BF16].into_iter().chain(DType::BLOCKS).map(Format::Plain);
    let codes = [2, 3, 4, 5, 6, 8].map(Code::Unsigned).into_iter().chain([Code::Signed8, Code::E2M1, Code::E4M3]);
    let scaled = codes.enumerate().map(|(i, code)| {
        let scales = [DType::F32, DType::F16, DType::BF16, DType::F8_E8M0, DType::F8_E4M3][i % 5];
        let form = ScaledForm::new(code, 32, [1, 128, usize::MAX][i % 3]).unwrap();
        Format::Scaled { form, scales, biased: scales.is_float() }
    });
    plain.chain(scaled).collect()
}

/// The variant's whole text, bound as layers bind it.
fn text(variant: Variant) -> String {
    let matrix = matches!(variant.shape, Shape::Matrix(_));
    let x = if variant.wide_x { Form::Vec4 } else { Form::F32 };
    let mut bindings = vec![("x", if matrix { Form::Half4 } else { x }, false)];
    if matrix {
        bindings.push(("unscale", Form::F32, false));
    }
    for ((format, align), names) in [(Some(variant.a), super::weight::A), (variant.b, super::weight::B)]
        .into_iter()
        .filter_map(|(w, names)| w.map(|w| (w, names)))
    {
        bindings.push((names[0], if format.is_wide(align) { Form::UVec4 } else { Form::U32 }, false));
        if let Format::Scaled { biased, .. } = format {
            bindings.push((names[1], Form::U32, false));
            bindings.extend(biased.then_some((names[2], Form::U32, false)));
        }
    }
    if let Some(norm) = variant.norm {
        bindings.extend([("norm_weight", Form::Stored(norm.weight), false), ("normed", Form::Vec4, true)]);
    }
    bindings.push(("grid", Form::U32, false));
    if let Shape::Gather { .. } = variant.shape {
        bindings.extend([("index", Form::I32, false), ("weights", Form::F32, false)]);
    }
    bindings.push(("bias", Form::Stored(DType::BF16), false));
    bindings.extend([("residual", Form::F32, true), ("list", Form::U32, false), ("out", Form::F32, true)]);
    let source = variant.source();
    let matrices = if matrix { Matrices::Units } else { Matrices::No };
    compose(
        source,
        &Key { name: source.name, bindings, constants: Vec::new(), f16: matrix, matrices, hard_half: variant.a.1 == 1 },
    )
}

/// Languages that have what a kernel uses.
#[derive(Clone, Copy, PartialEq)]
enum Languages {
    All,
    /// Matrix units: not HLSL, and of the sides only 8 in MSL. The translator doesn't notice that.
    Matrices {
        metal: bool,
    },
}

fn translate(what: &str, text: &str, languages: Languages) {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{what}: {}", e.emit_to_string(text)));
    let capabilities = Capabilities::IMMEDIATES
        | Capabilities::SUBGROUP
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::COOPERATIVE_MATRIX;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    spv::write_vec(&module, &info, &spv::Options { lang_version: (1, 3), ..Default::default() }, None)
        .unwrap_or_else(|e| panic!("{what} in SPIR-V: {e}"));
    if languages == (Languages::Matrices { metal: false }) {
        return;
    }
    let options = msl::Options { lang_version: (3, 0), fake_missing_bindings: true, ..Default::default() };
    msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|e| panic!("{what} in MSL: {e}"));
    if languages != Languages::All {
        return;
    }
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_2,
        fake_missing_bindings: true,
        immediates_target: Some(hlsl::BindTarget::default()),
        ..Default::default()
    };
    let mut out = String::new();
    hlsl::Writer::new(&mut out, &options, &hlsl::PipelineOptions::default())
        .write(&module, &info, None)
        .unwrap_or_else(|e| panic!("{what} in HLSL: {e}"));
}

#[test]
fn every_kernel_is_valid_in_every_language() {
    let plain = Variant {
        shape: Shape::Gather { weighted: true, add: false, all: true },
        a: (Format::Plain(DType::F16), 16),
        b: None,
        more: [None; 3],
        in_out: false,
        tail: false,
        whole: false,
        wide_x: true,
        routed: Routed::No,
        bias: false,
        residual: false,
        activation: 0,
        norm: None,
    };
    for format in formats() {
        for align in [1, 16] {
            for shape in [
                Shape::Gather { weighted: align == 1, add: true, all: false },
                Shape::Rows { outputs: 2, batch: 1, threads: 64, subgroup: 2 * align },
            ] {
                translate(
                    &format!("{shape:?} of {format}"),
                    &text(Variant { shape, a: (format, align), ..plain }),
                    Languages::All,
                );
            }
        }
    }
    let shapes = [
        Shape::Rows { outputs: 2, batch: 2, threads: 64, subgroup: 0 },
        Shape::Rows { outputs: 1, batch: 4, threads: 128, subgroup: 32 },
        Shape::Columns { batch: 2 },
        Shape::Tile { m: 1, n: 4 },
        Shape::Tile { m: 4, n: 4 },
        Shape::Matrix(Units { side: 16, m: 4, n: 4, across: 2, depth: 32, vectors: true }),
        Shape::Matrix(Units { side: 16, m: 4, n: 2, across: 4, depth: 64, vectors: true }),
        Shape::Matrix(Units { side: 8, m: 4, n: 4, across: 2, depth: 32, vectors: false }),
        Shape::Matrix(Units { side: 8, m: 8, n: 4, across: 4, depth: 32, vectors: true }),
    ];
    for shape in shapes {
        let in_out = matches!(shape, Shape::Columns { .. });
        for (i, routed) in [Routed::No, Routed::Ids, Routed::Slots].into_iter().enumerate() {
            for flag in [false, true] {
                let variant = Variant {
                    shape,
                    b: flag.then_some((Format::Plain(DType::BF16), 2)),
                    in_out: in_out || (flag && matches!(shape, Shape::Tile { .. } | Shape::Matrix(_))),
                    tail: flag,
                    whole: !flag,
                    wide_x: !in_out && !flag,
                    routed,
                    bias: !flag,
                    residual: !flag,
                    activation: i as u32 + 1,
                    norm: (flag && matches!(shape, Shape::Rows { .. }) && routed == Routed::No)
                        .then_some(Kind { weight: DType::BF16, one_plus: true }),
                    ..plain
                };
                let languages = match shape {
                    Shape::Matrix(units) => Languages::Matrices { metal: units.side == 8 },
                    _ => Languages::All,
                };
                translate(&format!("{variant:?}"), &text(variant), languages);
            }
        }
    }
}

#[test]
fn rows_are_converted_once_for_layers_that_follow_each_other_and_never_kept_too_long() {
    let device = crate::variants::nothing(32, Some(16));
    let memory = device.alloc("test", 4 << 20).unwrap();
    let x = |i: usize| memory.view(i << 18, DType::F32, [64, 128]);
    let w = memory.view(3 << 20, DType::F16, [128, 128]);
    let names = |ops: &[Op<'_>]| -> Vec<&str> {
        let mut plan = Plan::new(&device.gpu);
        for op in ops {
            op.check().unwrap();
            crate::ops::plan(&mut plan, op).unwrap();
            plan.end_op();
        }
        plan.dispatches.iter().map(|d| d.source.name.split(' ').nth(1).unwrap_or(d.source.name)).collect()
    };
    let layer = |from: usize, to: usize| Op::Matmul(Matmul::new(x(from), w, x(to)));
    let decoded = |from: usize, to: usize| Op::Matmul(Matmul { prompt_rows: 0, ..Matmul::new(x(from), w, x(to)) });
    let half = |from: usize, to: usize| Op::Matmul(Matmul { prompt_rows: 32, ..Matmul::new(x(from), w, x(to)) });
    assert_eq!(names(&[layer(0, 1), layer(0, 2), layer(0, 3)]), ["halves", "matrix", "matrix", "matrix"]);
    assert_eq!(names(&[half(0, 1), half(0, 2)]), ["halves", "matrix", "rows", "matrix", "rows"]);
    // Something else writes x, or its work space, in between.
    assert_eq!(names(&[layer(0, 1), layer(2, 0), layer(0, 1)]).iter().filter(|n| **n == "halves").count(), 3);
    assert_eq!(names(&[layer(0, 1), decoded(2, 0), layer(0, 1)]).iter().filter(|n| **n == "halves").count(), 2);
    let zero = Op::Zero(turbospark_device::op::Zero { out: x(0) });
    assert_eq!(names(&[layer(0, 1), zero, layer(0, 1)]).iter().filter(|n| **n == "halves").count(), 2);
}
