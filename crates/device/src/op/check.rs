//! What the checks of all ops share.

use turbospark_tensor::DType;

use crate::View;

pub(super) type Checked = Result<(), String>;

fn in_bounds(name: &str, v: &View<'_>) -> Checked {
    match v.end_bytes() {
        Some(end) if end <= v.buffer().len() => Ok(()),
        _ => Err(format!("{name} {v:?} leaves its buffer of {} bytes", v.buffer().len())),
    }
}

/// `v` has exactly these sides and an innermost stride of 1.
pub(super) fn sides(name: &str, v: &View<'_>, want: &[usize]) -> Checked {
    if v.dims() != want {
        return Err(format!("{name} has shape {}, expected {want:?}", v.shape()));
    }
    if v.shape().rank() > 0 && v.shape().last() > 1 && v.stride(v.shape().rank() - 1) != 1 {
        return Err(format!("{name} is strided in its innermost axis"));
    }
    in_bounds(name, v)
}

/// `v` is f32 with these sides. f32 views start at multiples of four bytes, so that kernels may load them aligned.
pub(super) fn f32s(name: &str, v: &View<'_>, want: &[usize]) -> Checked {
    typed(name, v, DType::F32, want)
}

/// `v` is i32, dense, with these sides.
pub(super) fn i32s(name: &str, v: &View<'_>, want: &[usize]) -> Checked {
    typed(name, v, DType::I32, want)?;
    dense(name, v)
}

fn typed(name: &str, v: &View<'_>, dtype: DType, want: &[usize]) -> Checked {
    if v.dtype() != dtype {
        return Err(format!("{name} is {}, expected {dtype}", v.dtype()));
    }
    if !v.offset_bytes().is_multiple_of(dtype.size()) {
        return Err(format!("{name} starts at byte {}, which is not aligned", v.offset_bytes()));
    }
    sides(name, v, want)
}

/// `v` is a dense weight of any float type with these sides; it may start at any byte.
pub(super) fn weight(name: &str, v: &View<'_>, want: &[usize]) -> Checked {
    if !v.dtype().is_float() {
        return Err(format!("{name} is {}, expected a float type", v.dtype()));
    }
    sides(name, v, want)?;
    dense(name, v)
}

/// `v` is a dense `[out, in]` weight or a table, of a float type or of blocks that no two rows share.
pub(super) fn rows(name: &str, v: &View<'_>, want: &[usize]) -> Checked {
    if !v.dtype().is_block() {
        return weight(name, v, want);
    }
    let (dtype, block, n) = (v.dtype(), v.dtype().block().elements, v.shape().last());
    require(n.is_multiple_of(block), || format!("{name} is {dtype}: rows of {n} are no whole blocks of {block}"))?;
    sides(name, v, want)?;
    dense(name, v)
}

/// `v` has no gaps.
pub(super) fn dense(name: &str, v: &View<'_>) -> Checked {
    if v.is_dense() { Ok(()) } else { Err(format!("{name} has gaps, expected a dense view")) }
}

/// `v` has this many sides.
pub(super) fn rank(name: &str, v: &View<'_>, want: usize) -> Checked {
    if v.shape().rank() == want {
        Ok(())
    } else {
        Err(format!("{name} has shape {}, expected {want} sides", v.shape()))
    }
}

/// The two views share no byte of one buffer.
pub(super) fn apart(a_name: &str, a: &View<'_>, b_name: &str, b: &View<'_>) -> Checked {
    let span = |v: &View<'_>| v.offset_bytes()..v.end_bytes().unwrap_or(usize::MAX);
    let (x, y) = (span(a), span(b));
    if std::ptr::eq(a.buffer(), b.buffer()) && x.start < y.end && y.start < x.end {
        return Err(format!("{a_name} and {b_name} overlap"));
    }
    Ok(())
}

/// `condition`, or the message.
pub(super) fn require(condition: bool, message: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(message()) }
}
