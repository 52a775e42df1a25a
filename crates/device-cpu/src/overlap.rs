//! Whether two views share an element.

use turbospark_device::View;

/// Whether the views may share a byte; `same_is_fine` lets identical views pass.
///
/// Never false for views that do share one. True for a few that don't: interleaved ones whose gaps no common
/// stride explains.
pub(crate) fn overlap(a: &View<'_>, b: &View<'_>, same_is_fine: bool) -> bool {
    if !std::ptr::eq(a.buffer(), b.buffer()) || a.shape().elements() == 0 || b.shape().elements() == 0 {
        return false;
    }
    let span = |v: &View<'_>| v.offset_bytes()..v.end_bytes().unwrap_or(usize::MAX);
    let (x, y) = (span(a), span(b));
    if x.start >= y.end || y.start >= x.end {
        return false;
    }
    let sides = |v: &View<'_>| -> Vec<(usize, usize)> {
        v.dims().iter().enumerate().filter(|&(_, &d)| d > 1).map(|(i, &d)| (d, v.stride(i))).collect()
    };
    let same = a.offset_bytes() == b.offset_bytes() && a.dtype() == b.dtype() && sides(a) == sides(b);
    if same {
        return !same_is_fine;
    }
    if a.dtype().is_block() || b.dtype().is_block() {
        return true; // Such views are dense: spans that meet share a byte.
    }
    // Parts of interleaved rows: every axis whose stride is a multiple of `period` leaves an element's place
    // within the period alone, so it is enough that the rest of both views fit the period apart.
    let periods = sides(a).into_iter().map(|(_, s)| s * a.dtype().size());
    !periods.filter(|&p| p > 1).any(|period| apart_within(a, b, period))
}

/// Bytes of the view's elements from its first one, leaving out axes that step by whole periods.
fn window(v: &View<'_>, period: usize) -> usize {
    let size = v.dtype().size();
    let steps = v.dims().iter().enumerate().filter(|&(i, _)| !(v.stride(i) * size).is_multiple_of(period));
    steps.map(|(i, &d)| (d - 1) * v.stride(i) * size).sum::<usize>() + size
}

fn apart_within(a: &View<'_>, b: &View<'_>, period: usize) -> bool {
    let (wide_a, wide_b) = (window(a, period), window(b, period));
    let gap = (b.offset_bytes() + period - a.offset_bytes() % period) % period;
    // `b` begins `gap` after `a` around the period: `a` ends before it, and `b` ends before `a` begins again.
    wide_a <= gap && gap + wide_b <= period
}

#[cfg(test)]
mod tests {
    use turbospark_device::Buffer;
    use turbospark_tensor::DType;

    use super::*;

    #[test]
    fn halves_of_heads_are_apart_and_neighbours_are_not() {
        let buffer = Buffer::new(4096, ());
        let both = buffer.view(0, DType::F32, [4, 3 * 16]).split_last(16);
        let (q, gate) = (both.narrow(2, 0..8), both.narrow(2, 8..16));
        assert!(!overlap(&q, &gate, false) && !overlap(&gate, &q, false));
        assert!(overlap(&q, &both.narrow(2, 4..12), true));
        assert!(overlap(&q, &q, false) && !overlap(&q, &q, true));
        assert!(overlap(&q, &q.rows(0..2), true));
        let row = buffer.view(0, DType::F32, [4, 48]);
        assert!(!overlap(&row.narrow(1, 0..16), &row.narrow(1, 16..48), false));
        assert!(overlap(&row.rows(0..3), &row.rows(1..4), true));
        assert!(!overlap(&row.rows(0..2), &row.rows(2..4), true));
    }
}
