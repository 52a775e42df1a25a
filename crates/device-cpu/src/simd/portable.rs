//! Plain Rust that every target compiles, eight lanes wide.

use half::{bf16, f16};

use super::tile::tiles;
use super::{Simd, TileArgs};

const LANES: usize = 8;

/// No instruction set beyond the target's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

#[inline(always)]
fn map2(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = a;
    for (o, b) in out.iter_mut().zip(b) {
        *o = f(*o, b);
    }
    out
}

impl Simd for Portable {
    type V = [f32; LANES];
    const LANES: usize = LANES;
    const TILE_ROWS: usize = 4;
    const TILE_COLS: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Not `mul_add`: without the instruction it is a library call.
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        let mut out = no;
        for i in 0..LANES {
            out[i] = if a[i] < b[i] { yes[i] } else { no[i] };
        }
        out
    }

    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        map2(v, n, |v, n| v * f32::from_bits(((n as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_some(self, p: *const f32, n: usize) -> Self::V {
        let mut out = [0.0; LANES];
        for (i, o) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's promise.
            *o = unsafe { p.add(i).read_unaligned() };
        }
        out
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|b| bf16::from_bits(b).to_f32())
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|b| f16::from_bits(b).to_f32())
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise; the write is unaligned.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_some(self, p: *mut f32, v: Self::V, n: usize) {
        for (i, x) in v.into_iter().enumerate().take(n) {
            // SAFETY: the caller's promise.
            unsafe { p.add(i).write_unaligned(x) }
        }
    }

    #[inline(always)]
    unsafe fn store_transposed(self, rows: &[Self::V], out: *mut f32, ld: usize) {
        for (r, row) in rows.iter().enumerate() {
            for (l, &x) in row.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { *out.add(l * ld + r) = x };
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    unsafe fn tile_packed(self, a: TileArgs) {
        tiles!(self, self, a, 1, 1, Self::LEFT, [2 4]);
    }

    #[inline(always)]
    unsafe fn tile_rows<const STRIDE: usize>(self, a: TileArgs) {
        tiles!(self, self, a, 1, STRIDE, 1, [2 4]);
    }
}
