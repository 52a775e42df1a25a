//! Vectors of 64 bytes and products in integers, for weights in quantised blocks.
//!
//! Sums run in sixteen lanes on every instruction set. A superblock of 256 elements is sixteen groups of sixteen,
//! and a lane takes one group, so that no scale is shared out and no lane summed within a superblock. Codes are
//! unpacked in the order of their elements, 64 to a vector; [`Bytes::transpose`] then gives lane `4 r + j` the
//! group `4 j + r` (quarter `r` of vector `j`), four elements a vector. Activations are stored in that order.

use turbospark_tensor::DType;

use super::{Simd, scaled};
use crate::isa::Kernels;

pub(crate) mod formats;
pub(crate) mod grid_formats;
pub(crate) mod k_formats;
#[cfg(test)]
mod portable;
pub(crate) mod rows;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod vbmi;

/// Elements whose integer sums are scaled together.
pub(crate) const SUPER: usize = 256;

/// The group of sixteen elements that a lane takes.
pub(crate) const fn group(lane: usize) -> usize {
    lane % 4 * 4 + lane / 4
}

/// The block of 32 elements that a lane's group lies in.
pub(crate) const fn block(lane: usize) -> usize {
    group(lane) / 2
}

/// Scales in a row, and which of them each lane takes.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    /// Of sixteen lanes, below `count`.
    pub index: [u32; 16],
    /// Scales, at most sixteen.
    pub count: usize,
}

/// 64 bytes, sixteen i32 and sixteen f32, and what the row kernels need of them.
pub(crate) trait Bytes: Copy + Send + Sync + 'static {
    /// Its vectors of f32.
    type S: Simd;
    /// 64 bytes.
    type V: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixteen f32.
    type F: Copy + AsRef<[<Self::S as Simd>::V]> + AsMut<[<Self::S as Simd>::V]>;

    /// Whether it has [`Bytes::dot`] and [`Bytes::flip`].
    const GRID: bool = false;
    /// Whether it has [`Bytes::e4m3`], [`Bytes::e4m3_place`], [`Bytes::load_some`] and [`Bytes::pick`].
    const E4M3: bool = false;

    /// The proof that it rests on.
    fn simd(self) -> Self::S;

    /// Runs a loop in a function of its own, which is compiled once for all who call it.
    fn outlined(self, task: impl ByteTask);

    /// Loads 64 bytes.
    ///
    /// # Safety
    /// They are readable. No alignment is asked for, here and below.
    unsafe fn load(self, p: *const u8) -> Self::V;
    /// Loads 32 bytes and 32 bytes.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_halves(self, a: *const u8, b: *const u8) -> Self::V;
    /// Loads sixteen bytes twice, and sixteen others twice.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_twice(self, a: *const u8, b: *const u8) -> Self::V;
    /// `v & mask` in every byte.
    fn and(self, v: Self::V, mask: u8) -> Self::V;
    /// `a | b`.
    fn or(self, a: Self::V, b: Self::V) -> Self::V;
    /// Shifts the bytes of each quarter right, by -8 to 8. What comes in from beside a byte is undefined.
    fn shift<const Q0: i32, const Q1: i32, const Q2: i32, const Q3: i32>(self, v: Self::V) -> Self::V;
    /// Vector `i` of the result has dword `i` of quarter `r` of each of the four as dwords `4 r ..`.
    fn transpose(self, v: [Self::V; 4]) -> [Self::V; 4];

    /// The codes of `Q4_K`, half bytes of which each 32 bytes hold two blocks', transposed; of `Q5_K` with `fifth`,
    /// bytes that have a fifth bit for each block.
    ///
    /// # Safety
    /// 128 bytes are readable, of `fifth` 32.
    #[inline(always)]
    unsafe fn k_codes(self, p: *const u8, fifth: Option<*const u8>) -> [Self::V; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut q = [self.load_halves(p, p); 4];
            for (c, q) in q.iter_mut().enumerate() {
                let both = self.load_halves(p.add(32 * c), p.add(32 * c));
                *q = self.and(self.shift::<0, 0, 4, 4>(both), 15);
            }
            if let Some(fifth) = fifth {
                // Bit 2 c of the first half and bit 2 c + 1 of the second go to bit 4.
                let bits = self.load_halves(fifth, fifth);
                q[0] = self.or(q[0], self.and(self.shift::<-4, -4, -3, -3>(bits), 16));
                q[1] = self.or(q[1], self.and(self.shift::<-2, -2, -1, -1>(bits), 16));
                q[2] = self.or(q[2], self.and(self.shift::<0, 0, 1, 1>(bits), 16));
                q[3] = self.or(q[3], self.and(self.shift::<2, 2, 3, 3>(bits), 16));
            }
            self.transpose(q)
        }
    }

    /// Eight words, the first lowest.
    #[inline(always)]
    fn words(self, words: [u64; 8]) -> Self::V {
        // SAFETY: an array of 64 bytes.
        unsafe { self.load(words.as_ptr().cast()) }
    }
    /// Negates the bytes whose bit is set.
    fn negate(self, v: Self::V, bits: u64) -> Self::V;

    /// Unsigned codes of `BITS`, a little-endian stream, transposed.
    ///
    /// # Safety
    /// `32 BITS` bytes are readable.
    #[inline(always)]
    unsafe fn fields<const BITS: usize>(self, p: *const u8) -> [Self::V; 4] {
        // SAFETY: the caller's promise; an array of as many bytes as are loaded.
        unsafe {
            let mut q = [self.load_nibbles(p); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let from = p.add(8 * BITS * i);
                *q = if BITS == 4 {
                    self.load_nibbles(from)
                } else {
                    let two = [scaled::unpack::<BITS>(from), scaled::unpack::<BITS>(from.add(4 * BITS))];
                    self.load(two.as_ptr().cast())
                };
            }
            self.transpose(q)
        }
    }

    /// Loads 64 half bytes, the low half of a byte first.
    ///
    /// # Safety
    /// 32 bytes are readable.
    unsafe fn load_nibbles(self, p: *const u8) -> Self::V;
    /// Each byte's entry of a table; they are below 16.
    fn lookup(self, v: Self::V, table: &[u8; 16]) -> Self::V;
    /// `value` in each byte whose bit is set.
    fn spread_bits(self, bits: u64, value: u8) -> Self::V;

    /// 64 codes of E4M3, widened; lanes `4 g ..` of all four are of codes `16 g ..`.
    fn e4m3(self, _codes: Self::V) -> [Self::F; 4] {
        unreachable!("see E4M3")
    }
    /// Which code lane `at % 16` of vector `at / 16` of [`Bytes::e4m3`] is.
    fn e4m3_place(_at: usize) -> usize {
        unreachable!("see E4M3")
    }
    /// Each lane's choice among the sixteen.
    fn pick(self, _v: Self::F, _index: &[u32; 16]) -> Self::F {
        unreachable!("see E4M3")
    }
    /// Loads `some` bytes, 1 to 64; the others are zero.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_some(self, _p: *const u8, _some: usize) -> Self::V {
        unreachable!("see E4M3")
    }

    /// Whether [`Bytes::dots`] takes any unsigned bytes.
    const WIDE: bool;

    /// Adds to each lane of `sums` the products of its four bytes, for all four vectors. `q` is 0 to 63, `x` not -128.
    ///
    /// # Safety
    /// 256 bytes of `x` are readable.
    unsafe fn dots(self, sums: Self::I, q: &[Self::V; 4], x: *const i8) -> Self::I;
    /// Adds the products of one vector, of any unsigned bytes.
    ///
    /// # Safety
    /// 64 bytes of `x` are readable.
    unsafe fn dot(self, _sums: Self::I, _q: Self::V, _x: *const i8) -> Self::I {
        unreachable!("see GRID")
    }
    /// Signed bytes and 128.
    fn flip(self, _q: Self::V) -> Self::V {
        unreachable!("see GRID")
    }
    /// The sums of `q x` with any unsigned `q`.
    ///
    /// # Safety
    /// As [`Bytes::dots`].
    #[inline(always)]
    unsafe fn dots_wide(self, q: &[Self::V; 4], x: *const i8) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::WIDE {
                return self.to_f32(self.dots(self.zeros(), q, x));
            }
            let (mut low, mut high) = (*q, *q);
            for (low, high) in low.iter_mut().zip(&mut high) {
                *high = self.and(self.shift::<6, 6, 6, 6>(*low), 3);
                *low = self.and(*low, 63);
            }
            let low = self.to_f32(self.dots(self.zeros(), &low, x));
            let high = self.to_f32(self.dots(self.zeros(), &high, x));
            self.fma(high, self.splat(64.0), low)
        }
    }

    /// The sums of `q x` with signed `q`, given the lanes of `-128 sum x`, which it needs where bytes are unsigned.
    ///
    /// # Safety
    /// As [`Bytes::dots`].
    unsafe fn dots_signed(self, offset: Self::I, q: &[Self::V; 4], x: *const i8) -> Self::I;

    /// Zeros.
    fn zeros(self) -> Self::I;
    /// Loads sixteen i32, shifted left.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_shifted(self, by: u32, p: *const i32) -> Self::I;
    /// As f32; exact below 2^24.
    fn to_f32(self, v: Self::I) -> Self::F;

    /// Widens f16.
    fn half(self, bits: u16) -> f32;
    /// Eight f16, `stride` bytes from one to the next, each to the lanes of its [`block`].
    ///
    /// # Safety
    /// They are readable.
    unsafe fn scales_f16(self, p: *const u8, stride: usize) -> Self::F;
    /// The eight bytes of an integer, each to the lanes of its [`block`].
    fn scales_u8(self, bytes: u64) -> Self::F;
    /// Sixteen signed bytes, each to the lane of its [`group`].
    ///
    /// # Safety
    /// They are readable.
    unsafe fn scales_i8(self, p: *const u8) -> Self::F;

    /// `2^(e - 128)` for the eight bytes `e` of an integer, each to the lanes of its [`block`].
    #[inline(always)]
    fn scales_half_e8m0(self, bytes: u64) -> Self::F {
        let mut scales = [0f32; 16];
        for (lane, scale) in scales.iter_mut().enumerate() {
            let e = u32::from(bytes.to_le_bytes()[block(lane)]);
            // From e = 1 down it is subnormal.
            *scale = f32::from_bits(if e < 2 { 1 << (21 + e) } else { (e - 1) << 23 });
        }
        // SAFETY: an array of sixteen.
        unsafe { self.load_f32(scales.as_ptr()) }
    }

    /// Scales of a float type, F8_E8M0 or F8_E4M3, times a factor, spread to the lanes.
    ///
    /// # Safety
    /// `spread.count` scales are readable.
    unsafe fn scales(self, p: *const u8, dtype: DType, spread: &Spread, factor: f32) -> Self::F;

    /// `v * factor`.
    #[inline(always)]
    fn times(self, v: Self::F, factor: f32) -> Self::F {
        if factor == 1.0 { v } else { self.mul(v, self.splat(factor)) }
    }

    /// [`Bytes::scales`] one by one.
    ///
    /// # Safety
    /// As [`Bytes::scales`].
    #[inline(always)]
    unsafe fn scales_singly(self, p: *const u8, dtype: DType, spread: &Spread) -> Self::F {
        let (mut wide, mut lanes) = ([0f32; 16], [0f32; 16]);
        for (g, wide) in wide.iter_mut().enumerate().take(spread.count) {
            // SAFETY: the caller's promise.
            *wide = unsafe { scaled::scale(p, dtype, g) };
        }
        for (lane, &g) in lanes.iter_mut().zip(&spread.index) {
            *lane = wide[g as usize & 15];
        }
        // SAFETY: an array of sixteen.
        unsafe { self.load_f32(lanes.as_ptr()) }
    }

    /// `x` in every lane.
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: loads of an array of sixteen.
        unsafe { self.load_f32([x; 16].as_ptr()) }
    }

    /// Loads sixteen f32.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load_f32(self, p: *const f32) -> Self::F;

    /// Stores sixteen f32.
    ///
    /// # Safety
    /// They are writable.
    #[inline(always)]
    unsafe fn store_f32(self, p: *mut f32, v: Self::F) {
        for (i, &v) in v.as_ref().iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.simd().store(p.add(i * Self::S::LANES), v) };
        }
    }

    /// `a * b`.
    #[inline(always)]
    fn mul(self, mut a: Self::F, b: Self::F) -> Self::F {
        for (a, &b) in a.as_mut().iter_mut().zip(b.as_ref()) {
            *a = self.simd().mul(*a, b);
        }
        a
    }

    /// `a + b`.
    #[inline(always)]
    fn plus(self, mut a: Self::F, b: Self::F) -> Self::F {
        for (a, &b) in a.as_mut().iter_mut().zip(b.as_ref()) {
            *a = self.simd().add(*a, b);
        }
        a
    }

    /// `a * b + c`.
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, mut c: Self::F) -> Self::F {
        for ((c, &a), &b) in c.as_mut().iter_mut().zip(a.as_ref()).zip(b.as_ref()) {
            *c = self.simd().fma(a, b, *c);
        }
        c
    }

    /// The sum of the lanes, always in the same order.
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let (s, v) = (self.simd(), v.as_ref());
        s.sum(match *v {
            [a, b, c, d] => s.add(s.add(a, c), s.add(b, d)),
            [a, b] => s.add(a, b),
            _ => v[0],
        })
    }
}

/// A loop over [`Bytes`]; as [`Task`](super::Task).
pub(crate) trait ByteTask {
    /// Runs it. Implementations are `#[inline(always)]`.
    fn run<B: Bytes>(self, b: B);
}

/// Whether there are integer products that go with `kernels`. Plain Rust has none that would pay: there, codes are
/// widened to f32.
pub(crate) fn go_with(kernels: Kernels) -> bool {
    !matches!(kernels, Kernels::Portable(_))
}

/// Whether [`run`] has [`Bytes::e4m3`].
pub(crate) fn widens_e4m3(kernels: Kernels) -> bool {
    match kernels {
        #[cfg(target_arch = "x86_64")]
        Kernels::Avx512(s) => avx512::Avx512Bytes::new(s).is_some(),
        #[cfg(target_arch = "x86_64")]
        Kernels::Avx512Bf16(u) => avx512::Avx512Bytes::new(u.vectors()).is_some(),
        #[cfg(target_arch = "x86_64")]
        Kernels::Amx(u) => avx512::Avx512Bytes::new(u.vectors()).is_some(),
        #[cfg(all(test, target_arch = "x86_64"))]
        Kernels::SoftwareAmx(u) => avx512::Avx512Bytes::new(u.vectors()).is_some(),
        _ => false,
    }
}

/// Runs a loop with the best integer products that go with `kernels`; there are some.
pub(crate) fn run(kernels: Kernels, task: impl ByteTask) {
    match kernels {
        Kernels::Portable(_) => unreachable!("plain Rust has no products of bytes"),
        #[cfg(target_arch = "x86_64")]
        Kernels::Avx2(s) => avx2::run(s, task),
        #[cfg(target_arch = "x86_64")]
        Kernels::Avx512(s) => avx512::run(s, task),
        #[cfg(target_arch = "x86_64")]
        Kernels::Avx512Bf16(u) => avx512::run(u.vectors(), task),
        #[cfg(target_arch = "x86_64")]
        Kernels::Amx(u) => avx512::run(u.vectors(), task),
        #[cfg(all(test, target_arch = "x86_64"))]
        Kernels::SoftwareAmx(u) => avx512::run(u.vectors(), task),
        #[cfg(target_arch = "aarch64")]
        Kernels::Neon(s) => neon::run(s, task),
        #[cfg(target_arch = "aarch64")]
        Kernels::NeonBf16(u) => neon::run(u.vectors(), task),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lanes of both kinds of products.
    pub(super) struct Products<'a> {
        q: &'a [u8; SUPER],
        x: &'a [i8; SUPER],
        out: &'a mut [f32; 32],
    }

    impl ByteTask for Products<'_> {
        #[inline(always)]
        fn run<B: Bytes>(self, b: B) {
            let offset: [i32; 16] = std::array::from_fn(|lane| {
                let of = |i: usize| self.x[64 * i + 4 * lane..][..4].iter().map(|&x| -i32::from(x)).sum::<i32>();
                (0..4).map(of).sum()
            });
            // SAFETY: arrays of the sizes that are read.
            unsafe {
                let q: [B::V; 4] = std::array::from_fn(|i| b.load(self.q.as_ptr().add(64 * i)));
                let small = q.map(|q| b.and(q, 63));
                let out = self.out.as_mut_ptr();
                b.store_f32(out, b.to_f32(b.dots(b.zeros(), &small, self.x.as_ptr())));
                let offset = b.load_shifted(7, offset.as_ptr());
                b.store_f32(out.add(16), b.to_f32(b.dots_signed(offset, &q, self.x.as_ptr())));
            }
        }
    }

    /// Runs tasks on `run` and in plain Rust: the products must be the same.
    pub(super) fn agrees_with_portable(run: impl Fn(Products<'_>)) {
        for round in 0..300u32 {
            let next = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(round.wrapping_mul(40_503)) >> 13;
            let q = std::array::from_fn(|i| if round < 4 { [0, 63, 128, 255][round as usize] } else { next(i) as u8 });
            let x = std::array::from_fn(|i| match round {
                0..4 => {
                    if i % 64 < 32 {
                        127
                    } else {
                        -127
                    }
                }
                _ => (next(i + 1000) as u8 as i8).max(-127),
            });
            let (mut got, mut want) = ([0.0; 32], [0.0; 32]);
            run(Products { q: &q, x: &x, out: &mut got });
            portable_products(Products { q: &q, x: &x, out: &mut want });
            assert_eq!(got, want, "round {round}");
        }
    }

    fn portable_products(task: Products<'_>) {
        task.run(portable::PortableBytes(crate::simd::portable::Portable));
    }

    #[test]
    fn products_are_exact_on_every_instruction_set() {
        for isa in crate::Isa::available() {
            let kernels = Kernels::new(isa).expect("available");
            if !go_with(kernels) {
                continue;
            }
            agrees_with_portable(|task| super::run(kernels, task));
        }
    }
}
