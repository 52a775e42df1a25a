//! Bytes in plain Rust, which the others are tested against.

use half::f16;
use turbospark_tensor::DType;

use super::super::Simd;
use super::super::portable::Portable;
use super::{ByteTask, Bytes, Spread, block, group};

/// See [`Portable`].
#[derive(Clone, Copy)]
pub(super) struct PortableBytes(pub Portable);

type Bytes64 = [u8; 64];

#[inline(always)]
fn products(sums: &mut [i32; 16], q: impl Fn(usize) -> i32, x: &[i8; 64]) {
    for (lane, sum) in sums.iter_mut().enumerate() {
        for e in 0..4 {
            *sum += q(4 * lane + e) * x[4 * lane + e] as i32;
        }
    }
}

impl Bytes for PortableBytes {
    type S = Portable;
    type V = Bytes64;
    type I = [i32; 16];
    type F = [[f32; 8]; 2];

    #[inline(always)]
    fn simd(self) -> Portable {
        self.0
    }

    fn outlined(self, task: impl ByteTask) {
        task.run(self);
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> Bytes64 {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Bytes64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_halves(self, a: *const u8, b: *const u8) -> Bytes64 {
        let mut v = [0; 64];
        // SAFETY: the caller's promise.
        unsafe {
            v[..32].copy_from_slice(&a.cast::<[u8; 32]>().read_unaligned());
            v[32..].copy_from_slice(&b.cast::<[u8; 32]>().read_unaligned());
        }
        v
    }

    #[inline(always)]
    unsafe fn load_twice(self, a: *const u8, b: *const u8) -> Bytes64 {
        let mut v = [0; 64];
        for (i, quarter) in v.chunks_exact_mut(16).enumerate() {
            // SAFETY: the caller's promise.
            quarter.copy_from_slice(&unsafe { if i < 2 { a } else { b }.cast::<[u8; 16]>().read_unaligned() });
        }
        v
    }

    #[inline(always)]
    fn and(self, v: Bytes64, mask: u8) -> Bytes64 {
        v.map(|x| x & mask)
    }

    #[inline(always)]
    fn or(self, mut a: Bytes64, b: Bytes64) -> Bytes64 {
        for (a, b) in a.iter_mut().zip(b) {
            *a |= b;
        }
        a
    }

    #[inline(always)]
    fn shift<const Q0: i32, const Q1: i32, const Q2: i32, const Q3: i32>(self, mut v: Bytes64) -> Bytes64 {
        for (quarter, by) in v.chunks_exact_mut(16).zip([Q0, Q1, Q2, Q3]) {
            for x in quarter {
                *x = if by < 0 { *x << -by } else { *x >> by };
            }
        }
        v
    }

    #[inline(always)]
    fn transpose(self, v: [Bytes64; 4]) -> [Bytes64; 4] {
        let mut out = v;
        for (i, out) in out.iter_mut().enumerate() {
            for (lane, to) in out.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&v[lane % 4][lane / 4 * 16 + 4 * i..][..4]);
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Bytes64 {
        // SAFETY: the caller's promise.
        let bytes = unsafe { p.cast::<[u8; 32]>().read_unaligned() };
        let mut v = [0; 64];
        for i in 0..32 {
            v[2 * i] = bytes[i] & 15;
            v[2 * i + 1] = bytes[i] >> 4;
        }
        v
    }

    #[inline(always)]
    fn lookup(self, v: Bytes64, table: &[u8; 16]) -> Bytes64 {
        v.map(|x| table[x as usize & 15])
    }

    #[inline(always)]
    fn spread_bits(self, bits: u64, value: u8) -> Bytes64 {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { value } else { 0 })
    }

    #[inline(always)]
    fn negate(self, v: Bytes64, bits: u64) -> Bytes64 {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { v[i].wrapping_neg() } else { v[i] })
    }

    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn dots(self, mut sums: Self::I, q: &[Bytes64; 4], x: *const i8) -> Self::I {
        for (i, q) in q.iter().enumerate() {
            // SAFETY: the caller's promise.
            let x = unsafe { x.add(64 * i).cast::<[i8; 64]>().read_unaligned() };
            products(&mut sums, |at| q[at] as i32, &x);
        }
        sums
    }

    #[inline(always)]
    unsafe fn dots_signed(self, _: Self::I, q: &[Bytes64; 4], x: *const i8) -> Self::I {
        let mut sums = [0; 16];
        for (i, q) in q.iter().enumerate() {
            // SAFETY: the caller's promise.
            let x = unsafe { x.add(64 * i).cast::<[i8; 64]>().read_unaligned() };
            products(&mut sums, |at| q[at] as i8 as i32, &x);
        }
        sums
    }

    #[inline(always)]
    fn zeros(self) -> Self::I {
        [0; 16]
    }

    #[inline(always)]
    unsafe fn load_shifted(self, by: u32, p: *const i32) -> Self::I {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[i32; 16]>().read_unaligned() }.map(|x| x << by)
    }

    #[inline(always)]
    fn to_f32(self, v: Self::I) -> Self::F {
        [std::array::from_fn(|i| v[i] as f32), std::array::from_fn(|i| v[8 + i] as f32)]
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    unsafe fn scales_f16(self, p: *const u8, stride: usize) -> Self::F {
        // SAFETY: the caller's promise; the reads are unaligned.
        let one = |i: usize| self.half(unsafe { p.add(i * stride).cast::<u16>().read_unaligned() });
        let all: [f32; 8] = std::array::from_fn(one);
        [std::array::from_fn(|i| all[block(i)]), std::array::from_fn(|i| all[block(8 + i)])]
    }

    #[inline(always)]
    fn scales_u8(self, bytes: u64) -> Self::F {
        let all = bytes.to_le_bytes();
        [std::array::from_fn(|i| all[block(i)] as f32), std::array::from_fn(|i| all[block(8 + i)] as f32)]
    }

    #[inline(always)]
    unsafe fn scales_i8(self, p: *const u8) -> Self::F {
        // SAFETY: the caller's promise.
        let all = unsafe { p.cast::<[i8; 16]>().read_unaligned() };
        [std::array::from_fn(|i| all[group(i)] as f32), std::array::from_fn(|i| all[group(8 + i)] as f32)]
    }

    #[inline(always)]
    unsafe fn scales(self, p: *const u8, dtype: DType, spread: &Spread, factor: f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { self.times(self.scales_singly(p, dtype, spread), factor) }
    }

    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { [self.0.load(p), self.0.load(p.add(8))] }
    }
}
