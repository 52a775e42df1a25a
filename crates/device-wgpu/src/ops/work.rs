//! How much an op is, so that a submission ends before the system takes the adapter for hung.

use turbospark_device::Op;

/// Multiplications and additions of the ops that may take long; zero for all else.
pub(crate) fn work(op: &Op<'_>) -> f64 {
    let n = |list: &[usize]| list.iter().map(|&n| n as f64).product::<f64>();
    match op {
        Op::Matmul(op) => 2.0 * n(&[op.x.dim(0), op.x.dim(1), op.out.dim(1)]),
        Op::GatedMatmul(op) => 4.0 * n(&[op.x.dim(0), op.x.dim(1), op.out.dim(1)]),
        Op::Experts(op) => 6.0 * n(&[op.x.dim(0), op.x.dim(1), op.width, op.ids.dim(1)]),
        Op::Attention(op) => {
            let pairs: f64 = op.cu_seqlens.windows(2).map(|s| n(&[s[1] - s[0], s[1] - s[0]])).sum();
            4.0 * pairs * n(&[op.q.dim(1), op.q.dim(2)])
        }
        Op::PagedAttention(op) => {
            let pairs: f64 = op.spans.iter().map(|s| n(&[s.rows, s.start + s.rows])).sum();
            4.0 * pairs * n(&[op.q.dim(1), op.q.dim(2)])
        }
        _ => 0.0,
    }
}
