//! The gated delta rule in chunks, on the tile kernels.
//!
//! With `G_i` the chunk's decay up to and with row `i`, `A_ij = beta_i (k_i . k_j) e^(G_i - G_j)` for `j < i`:
//!
//! * the writes `D` solve `(I + A) D = beta (v - e^G k S)`, a triangular system;
//! * `out = e^G q S + tril((q . k) e^(G_i - G_j)) D`;
//! * the state after row `p` is `e^(G_p) S + sum over j <= p of e^(G_p - G_j) k_j D_j`.
//!
//! Row `i` of `D` needs the rows before it only, so a snapshot inside a chunk is the third line with a smaller
//! `p`, and taking it changes nothing else. Chunks end at absolute multiples of [`BLOCK`].

use turbospark_device::Span;

use super::delta::{Scan, unit};
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::F32;
use crate::simd::unit::{Unit, Vectors, pack_transposed, tile_long};
use crate::simd::{BLOCK, Simd, TileArgs, math};

/// One head's working memory. Matrices have whole panels; what lies past `V` stays zero.
struct Work {
    /// Unit keys and queries, `[BLOCK, K]`.
    k: *mut f32,
    q: *mut f32,
    /// The same in row tiles.
    k_tiles: *mut f32,
    q_tiles: *mut f32,
    /// Keys as the right side, `[K, TILE_COLS]` a panel.
    k_panels: *mut f32,
    /// `A` and the masked products of queries and keys, `[BLOCK, BLOCK]`.
    a: *mut f32,
    qk: *mut f32,
    /// `D` and the outputs, `[BLOCK, width]`.
    d: *mut f32,
    out: *mut f32,
    /// The state and a copy for snapshots, `[K, width]`.
    state: *mut f32,
    copy: *mut f32,
    /// Decayed keys as a left side, `[BLOCK, LEFT]`.
    left: *mut f32,
    /// `V` rounded up to whole panels.
    width: usize,
    kn: usize,
    vn: usize,
}

/// Where the packed row tile from row `i` on begins.
#[inline(always)]
fn left<S: Simd>(i: usize, k: usize) -> usize {
    i / S::TILE_ROWS * S::LEFT * k
}

/// A span in chunks.
///
/// # Safety
/// Span and head lie in the scan's tensors, and nobody else touches this head's state and outputs.
#[inline(always)]
pub(super) unsafe fn chunks<S: Simd>(s: S, scan: &Scan<'_>, head: usize, span: &Span) {
    let (kn, vn) = (scan.k.dim(2), scan.v.dim(2));
    let width = vn.next_multiple_of(S::TILE_COLS);
    let tall = BLOCK.next_multiple_of(S::TILE_ROWS);
    let tiles = tall / S::TILE_ROWS * S::LEFT * kn;
    let [flat, square, wide] = [BLOCK * kn, tall * BLOCK, tall * width];
    let states = kn.next_multiple_of(S::TILE_ROWS) * width;
    let sizes = [flat, flat, tiles, tiles, flat, square, square, wide, wide, states, states, BLOCK * S::LEFT];
    let mut local = local(sizes.iter().map(|&len| rounded(len)).sum());
    let mut scratch = local.all();
    let [k, q, k_tiles, q_tiles, k_panels, a, qk, d, out, state, copy, left] =
        sizes.map(|len| cut(&mut scratch, len).as_mut_ptr());
    let w = Work { k, q, k_tiles, q_tiles, k_panels, a, qk, d, out, state, copy, left, width, kn, vn };
    let home = scan.state(span.state, head);
    // SAFETY: the sizes above, and the caller's promise.
    unsafe {
        for a in 0..kn {
            std::ptr::write_bytes(state.add(a * width), 0, width);
            std::ptr::copy_nonoverlapping(home.add(a * vn), state.add(a * width), vn);
        }
        let mut done = 0;
        while done < span.rows {
            let index = span.start + done;
            let len = (BLOCK - index % BLOCK).min(span.rows - done);
            chunk(s, scan, head, span, &w, done, len);
            done += len;
        }
        store_state(&w, state, home);
    }
}

/// Copies a state out of its panels.
///
/// # Safety
/// `from` has the form of `w.state`, and a dense state fits at `to`.
#[inline(always)]
unsafe fn store_state(w: &Work, from: *const f32, to: *mut f32) {
    for a in 0..w.kn {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.add(a * w.width), to.add(a * w.vn), w.vn) };
    }
}

/// Rows `done..done + len` of the span.
///
/// # Safety
/// As [`chunks`]; `w` has its sizes.
#[inline(always)]
unsafe fn chunk<S: Simd>(s: S, scan: &Scan<'_>, head: usize, span: &Span, w: &Work, done: usize, len: usize) {
    let (kn, vn, width) = (w.kn, w.vn, w.width);
    let key_head = scan.key_head(head);
    let first = span.first_row + done;
    // In f64: differences of large sums decide how much of a neighbour is left.
    let mut decay = [0f64; BLOCK];
    let mut beta = [0f32; BLOCK];
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = 0.0;
        for i in 0..len {
            sum += *scan.g.row(first + i).add(head) as f64;
            decay[i] = sum;
            beta[i] = *scan.beta.row(first + i).add(head);
            unit(s, scan.q.head(first + i, key_head), kn, 1.0 / (kn as f32).sqrt(), w.q.add(i * kn));
            unit(s, scan.k.head(first + i, key_head), kn, 1.0, w.k.add(i * kn));
        }
        for i in (0..len).step_by(S::TILE_ROWS) {
            let rows = S::TILE_ROWS.min(len - i);
            for (rows_of, tiles) in [(w.k, w.k_tiles), (w.q, w.q_tiles)] {
                let row = |r: usize| rows_of.add((i + r) * kn).cast_const();
                Vectors(s).pack_left(rows, kn, kn, row, tiles.add(left::<S>(i, kn)));
            }
        }
        for i in (0..len).step_by(S::TILE_COLS) {
            let cols = S::TILE_COLS.min(len - i);
            let key = |r: usize| w.k.add((i + r) * kn).cast_const().cast();
            pack_transposed::<_, F32>(Vectors(s), S::TILE_COLS, cols, kn, kn, key, w.k_panels.add(i * kn));
        }
        // a = k k^T, qk = q k^T, d = k S, out = q S
        for i in (0..len).step_by(S::TILE_ROWS) {
            let rows = S::TILE_ROWS.min(len - i);
            for (x, scores, sums) in [(w.k_tiles, w.a, w.d), (w.q_tiles, w.qk, w.out)] {
                let args = TileArgs {
                    rows,
                    k: kn,
                    x: x.add(left::<S>(i, kn)),
                    w: w.state,
                    ldw: width,
                    c: sums.add(i * width),
                    ldc: width,
                    add: false,
                };
                for j in (0..width).step_by(S::TILE_COLS) {
                    tile_long(Vectors(s), TileArgs { w: w.state.add(j), c: sums.add(i * width + j), ..args });
                }
                for j in (0..i + rows).step_by(S::TILE_COLS) {
                    let (panel, c) = (w.k_panels.add(j * kn), scores.add(i * BLOCK + j));
                    tile_long(Vectors(s), TileArgs { w: panel, ldw: S::TILE_COLS, c, ldc: BLOCK, ..args });
                }
            }
        }
        for i in 0..len {
            mask(s, w.a.add(i * BLOCK), &decay, i, i, beta[i]);
            mask(s, w.qk.add(i * BLOCK), &decay, i, i + 1, 1.0);
            // d = beta (v - e^G d), out = e^G out
            let kept = s.splat((decay[i] as f32).exp());
            let v = scan.v.head(first + i, head).cast_const();
            let (d, out) = (w.d.add(i * width), w.out.add(i * width));
            for j in (0..width).step_by(S::LANES) {
                let v = s.load_some(v.add(j.min(vn)), S::LANES.min(vn.saturating_sub(j)));
                s.store(d.add(j), s.mul(s.splat(beta[i]), s.sub(v, s.mul(kept, s.load(d.add(j))))));
                s.store(out.add(j), s.mul(kept, s.load(out.add(j))));
            }
        }
        solve(s, w, len);
        for i in (0..len).step_by(S::TILE_ROWS) {
            let rows = S::TILE_ROWS.min(len - i);
            for j in (0..width).step_by(S::TILE_COLS) {
                s.tile_rows::<BLOCK>(TileArgs {
                    rows,
                    k: i + rows,
                    x: w.qk.add(i * BLOCK),
                    w: w.d.add(j),
                    ldw: width,
                    c: w.out.add(i * width + j),
                    ldc: width,
                    add: true,
                });
            }
        }
        for i in 0..len {
            std::ptr::copy_nonoverlapping(w.out.add(i * width), scan.out.head(first + i, head), vn);
        }
        for shot in span.snapshots.iter().filter(|shot| (done + 1..=done + len).contains(&shot.after)) {
            std::ptr::copy_nonoverlapping(w.state, w.copy, kn * width);
            advance(s, w, w.copy, &decay, shot.after - done);
            store_state(w, w.copy, scan.state(shot.slot, head));
        }
        advance(s, w, w.state, &decay, len);
    }
}

/// `row[j] *= beta e^(G_i - G_j)` for `j < end`, zero from there on.
///
/// # Safety
/// `row` has [`BLOCK`] elements.
#[inline(always)]
unsafe fn mask<S: Simd>(s: S, row: *mut f32, decay: &[f64; BLOCK], i: usize, end: usize, beta: f32) {
    let mut power = [f32::NEG_INFINITY; BLOCK];
    for (p, g) in power.iter_mut().zip(decay).take(end) {
        *p = (decay[i] - g) as f32;
    }
    for j in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            // Past `end` lies what an earlier chunk left; only the load's mask keeps it out.
            let x = s.load_some(row.add(j), S::LANES.min(end.saturating_sub(j)));
            let factor = s.mul(s.splat(beta), math::exp(s, s.load(power.as_ptr().add(j))));
            s.store(row.add(j), s.mul(x, factor));
        }
    }
}

/// Solves `(I + A) D = d` in place, row by row.
///
/// # Safety
/// `w` has the sizes of [`chunks`].
#[inline(always)]
unsafe fn solve<S: Simd>(s: S, w: &Work, len: usize) {
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while j < w.width {
            if j + 4 * S::LANES <= w.width {
                solve_columns::<S, 4>(s, w, len, j);
                j += 4 * S::LANES;
            } else {
                solve_columns::<S, 1>(s, w, len, j);
                j += S::LANES;
            }
        }
    }
}

/// `N` vectors of columns of [`solve`].
///
/// # Safety
/// As [`solve`].
#[inline(always)]
unsafe fn solve_columns<S: Simd, const N: usize>(s: S, w: &Work, len: usize, col: usize) {
    let at = |i: usize, j: usize| w.d.wrapping_add(i * w.width + col + j * S::LANES);
    // SAFETY: the caller's promise.
    unsafe {
        for i in 1..len {
            let mut acc = [s.splat(0.0); N];
            for p in 0..i {
                let a = s.splat(*w.a.add(i * BLOCK + p));
                for (j, v) in acc.iter_mut().enumerate() {
                    *v = s.fma(a, s.load(at(p, j)), *v);
                }
            }
            for (j, v) in acc.into_iter().enumerate() {
                s.store(at(i, j), s.sub(s.load(at(i, j)), v));
            }
        }
    }
}

/// Advances `state` by the chunk's first `rows` rows.
///
/// # Safety
/// `w` has the sizes of [`chunks`] and holds the chunk's keys and writes.
#[inline(always)]
unsafe fn advance<S: Simd>(s: S, w: &Work, state: *mut f32, decay: &[f64; BLOCK], rows: usize) {
    let last = decay[rows - 1];
    let kept = s.splat((last as f32).exp());
    // SAFETY: the caller's promise.
    unsafe {
        for j in (0..w.kn * w.width).step_by(S::LANES) {
            s.store(state.add(j), s.mul(s.load(state.add(j)), kept));
        }
        for a in (0..w.kn).step_by(S::TILE_ROWS) {
            let height = S::TILE_ROWS.min(w.kn - a);
            for (p, g) in decay.iter().enumerate().take(rows) {
                let factor = ((last - g) as f32).exp();
                for i in 0..height {
                    *w.left.add(p * S::LEFT + i) = *w.k.add(p * w.kn + a + i) * factor;
                }
            }
            for j in (0..w.width).step_by(S::TILE_COLS) {
                s.tile_packed(TileArgs {
                    rows: height,
                    k: rows,
                    x: w.left,
                    w: w.d.add(j),
                    ldw: w.width,
                    c: state.add(a * w.width + j),
                    ldc: w.width,
                    add: true,
                });
            }
        }
    }
}
