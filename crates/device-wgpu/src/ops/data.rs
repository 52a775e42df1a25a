//! Moving elements.

use turbospark_device::View;
use turbospark_device::op::{Copy, Zero};
use turbospark_tensor::DType;

use super::{Done, WG, groups};
use crate::kernel::{Form, Source};
use crate::plan::{Plan, word};

const COPY: Source = Source { name: "copy", text: include_str!("../shaders/copy.wgsl"), includes: &[] };
const COPY_F32: Source = Source { name: "copy_f32", text: include_str!("../shaders/copy_f32.wgsl"), includes: &[] };
const COPY_WHOLE: Source =
    Source { name: "copy_whole", text: include_str!("../shaders/copy_whole.wgsl"), includes: &[] };
const ZERO: Source = Source { name: "zero", text: include_str!("../shaders/zero.wgsl"), includes: &[] };

/// Sides and strides in elements, filled up to four axes in front.
fn four(v: &View<'_>, scale: usize) -> Result<([u32; 4], [u32; 4]), turbospark_device::DeviceError> {
    let (rank, mut dims, mut strides) = (v.shape().rank(), [1; 4], [0; 4]);
    for axis in 0..rank {
        dims[4 - rank + axis] = word(v.dim(axis))?;
        strides[4 - rank + axis] = word(v.stride(axis) * scale)?;
    }
    Ok((dims, strides))
}

pub(super) fn copy(plan: &mut Plan<'_>, op: &Copy<'_>) -> Done {
    let count = op.from.shape().elements();
    if count == 0 {
        return Ok(());
    }
    let (a, b) = (op.from.dtype(), op.to.dtype());
    if a.size() == 4 && b == a {
        return copy_words(plan, op);
    }
    // Elements of eight bytes are pairs of words.
    let pair = if a.size() == 8 { 2 } else { 1 };
    let (mut dims, mut from_by) = four(&op.from, pair)?;
    let (_, mut to_by) = four(&op.to, pair)?;
    if pair == 2 {
        (dims[3], from_by[3], to_by[3]) = (2 * dims[3], 1, 1);
    }
    let (from, to) = (plan.stored(&op.from)?, plan.stored(&op.to)?);
    let length = op.to.end_bytes().unwrap_or(0) - op.to.offset_bytes();
    let end = to.at + word(length)?;
    let first = to.at / 4;
    let words = end.div_ceil(4) - first;
    // An axis of one index has no stride of its own: one past every other keeps its index zero.
    let past = |axis: usize, by: u32| if dims[axis] > 1 { by } else { u32::MAX };
    let convert = match b {
        _ if a == b => 0,
        DType::F32 => 1,
        DType::F16 => 2,
        _ => 3,
    };
    let params = [
        first,
        words,
        from.at,
        to.at,
        end,
        dims[1],
        dims[2],
        dims[3],
        from_by[0],
        from_by[1],
        from_by[2],
        from_by[3],
        past(0, to_by[0]),
        past(1, to_by[1]),
        past(2, to_by[2]),
    ];
    // Bytes that are only moved may be of any type.
    let form = Form::Stored(if convert == 0 { DType::F32 } else { a });
    plan.kernel(&COPY)
        .set("WG", WG)
        .set("CONVERT", convert)
        .set("TO_SIZE", b.size().min(4) as u32)
        .read("source", form, &from.window)
        .write("to", Form::U32, &to.window)
        .over(&params, groups(words as usize))
}

fn copy_words(plan: &mut Plan<'_>, op: &Copy<'_>) -> Done {
    let (from, to) = (plan.view(&op.from)?, plan.view(&op.to)?);
    let count = op.from.shape().elements();
    if op.from.is_dense() && op.to.is_dense() && [from.at as usize, to.at as usize, count].iter().all(|n| n % 4 == 0) {
        // A thread moves four vectors, a workgroup's length apart.
        let words = [word(count / 4)?, from.at / 4, to.at / 4];
        return plan
            .kernel(&COPY_WHOLE)
            .set("WG", WG)
            .read("source", Form::UVec4, &from.window)
            .write("to", Form::UVec4, &to.window)
            .over(&words, groups(count.div_ceil(16)));
    }
    let ((dims, from_by), (_, to_by)) = (four(&op.from, 1)?, four(&op.to, 1)?);
    let mut words = vec![word(count)?, from.at, to.at, dims[1], dims[2], dims[3]];
    words.extend(from_by.iter().chain(&to_by));
    plan.kernel(&COPY_F32)
        .set("WG", WG)
        .read("source", Form::U32, &from.window)
        .write("to", Form::U32, &to.window)
        .over(&words, groups(count))
}

pub(super) fn zero(plan: &mut Plan<'_>, op: &Zero<'_>) -> Done {
    let out = plan.stored(&op.out)?;
    let end = out.at + word(op.out.len_bytes().unwrap_or(0))?;
    let first = out.at / 4;
    let words = end.div_ceil(4) - first;
    plan.kernel(&ZERO)
        .set("WG", WG)
        .write("out", Form::U32, &out.window)
        .over(&[first, words, out.at, end], groups(words as usize))
}
