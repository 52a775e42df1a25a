//! The block formats whose blocks have 256 elements.

use super::Bytes;
use super::formats::{CURVE, Format, Unpacked, Values, halves, lookup};

/// The factors of `Q4_K` and `Q5_K`: of codes, and of mins, negated.
///
/// # Safety
/// The sixteen bytes are readable.
#[inline(always)]
unsafe fn k_scales<B: Bytes>(b: B, p: *const u8) -> (B::F, B::F) {
    // SAFETY: the caller's promise; the reads are unaligned.
    let [head, low, mid, high] = unsafe { p.cast::<[u32; 4]>().read_unaligned() }.map(u32::from_le);
    let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
    let join = |first: u32, last: u32| u64::from(first) | u64::from(last) << 32;
    let scales = join(low & six, high & four | (low >> 6 & two) << 4);
    let mins = join(mid & six, high >> 4 & four | (mid >> 6 & two) << 4);
    let (d, dmin) = (b.half(head as u16), b.half((head >> 16) as u16));
    (b.mul(b.scales_u8(scales), b.splat(d)), b.mul(b.scales_u8(mins), b.splat(-dmin)))
}

/// Half bytes, scales and mins.
#[derive(Clone, Copy)]
pub(crate) struct Q4K;

impl Format for Q4K {
    const BLOCK_BYTES: usize = 144;
    const VALUES: Values = Values::Small;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let (scale, min) = k_scales(b, p);
            Unpacked { q: b.k_codes(p.add(16), None), scale, min }
        }
    }
}

/// As [`Q4K`], with a fifth bit.
#[derive(Clone, Copy)]
pub(crate) struct Q5K;

impl Format for Q5K {
    const BLOCK_BYTES: usize = 176;
    const VALUES: Values = Values::Small;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let (scale, min) = k_scales(b, p);
            Unpacked { q: b.k_codes(p.add(48), Some(p.add(16))), scale, min }
        }
    }
}

/// Six bits, scales of sixteen elements.
#[derive(Clone, Copy)]
pub(crate) struct Q6K;

impl Format for Q6K {
    const BLOCK_BYTES: usize = 210;
    const VALUES: Values = Values::Less(5);

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let mut q = [b.load(p); 4];
            for h in 0..2 {
                let low = b.load(p.add(64 * h));
                let bits = b.load_halves(p.add(128 + 32 * h), p.add(128 + 32 * h));
                q[2 * h] = b.or(b.and(low, 15), b.and(b.shift::<-4, -4, -2, -2>(bits), 48));
                let high = b.shift::<4, 4, 4, 4>(low);
                q[2 * h + 1] = b.or(b.and(high, 15), b.and(b.shift::<0, 0, 2, 2>(bits), 48));
            }
            let d = b.half(p.add(208).cast::<u16>().read_unaligned());
            let scale = b.mul(b.scales_i8(p.add(192)), b.splat(d));
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// The codes of two bits in 64 bytes: 128 elements a half, of which each 32 take the next two bits of the same 32 bytes.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn quarters<B: Bytes>(b: B, p: *const u8) -> [B::V; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let (first, second) = (b.load_halves(p, p), b.load_halves(p.add(32), p.add(32)));
        [
            b.and(b.shift::<0, 0, 2, 2>(first), 3),
            b.and(b.shift::<4, 4, 6, 6>(first), 3),
            b.and(b.shift::<0, 0, 2, 2>(second), 3),
            b.and(b.shift::<4, 4, 6, 6>(second), 3),
        ]
    }
}

/// Two bits, scales and mins of sixteen elements.
#[derive(Clone, Copy)]
pub(crate) struct Q2K;

impl Format for Q2K {
    const BLOCK_BYTES: usize = 84;
    const VALUES: Values = Values::Small;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock; the reads are unaligned.
        unsafe {
            let packed = p.cast::<u128>().read_unaligned();
            let four = u128::from_ne_bytes([15; 16]);
            let (scales, mins) = ((packed & four).to_ne_bytes(), (packed >> 4 & four).to_ne_bytes());
            let half = |at: usize| b.half(u16::from_le(p.add(at).cast::<u16>().read_unaligned()));
            let scale = b.mul(b.scales_i8(scales.as_ptr()), b.splat(half(80)));
            let min = b.mul(b.scales_i8(mins.as_ptr()), b.splat(-half(82)));
            Unpacked { q: b.transpose(quarters(b, p.add(16))), scale, min }
        }
    }
}

/// Three bits, scales of sixteen elements.
#[derive(Clone, Copy)]
pub(crate) struct Q3K;

impl Format for Q3K {
    const BLOCK_BYTES: usize = 110;
    const VALUES: Values = Values::Less(2);

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock; the reads are unaligned.
        unsafe {
            let mut q = quarters(b, p.add(32));
            // Bit `j` of the first 32 bytes is the third bit of the elements `32 j ..`.
            let bits = b.load_halves(p, p);
            q[0] = b.or(q[0], b.and(b.shift::<-2, -2, -1, -1>(bits), 4));
            q[1] = b.or(q[1], b.and(b.shift::<0, 0, 1, 1>(bits), 4));
            q[2] = b.or(q[2], b.and(b.shift::<2, 2, 3, 3>(bits), 4));
            q[3] = b.or(q[3], b.and(b.shift::<4, 4, 5, 5>(bits), 4));
            let low = u64::from_le(p.add(96).cast::<u64>().read_unaligned());
            let high = u32::from_le(p.add(104).cast::<u32>().read_unaligned());
            let four = 0x0f0f_0f0f_0f0f_0f0f;
            let two = |shift: u32| u64::from(high >> shift & 0x0303_0303) << 4;
            let first = low & four | two(0) | two(2) << 32;
            let last = low >> 4 & four | two(4) | two(6) << 32;
            let scales = (u128::from(first) | u128::from(last) << 64).to_le_bytes();
            let d = b.half(u16::from_le(p.add(108).cast::<u16>().read_unaligned()));
            // Exact: a scale has six bits, and 32 less is as short.
            let scale = b.fma(b.scales_i8(scales.as_ptr()), b.splat(d), b.splat(-32.0 * d));
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// Half bytes that stand for points of a curve, scales of 32 elements.
#[derive(Clone, Copy)]
pub(crate) struct Iq4Xs;

impl Format for Iq4Xs {
    const BLOCK_BYTES: usize = 136;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock; the reads are unaligned.
        unsafe {
            let head = u64::from_le(p.cast::<u64>().read_unaligned());
            let (high, low) = (head >> 16 & 0xffff, head >> 32);
            // Each half byte, and each two bits, to a byte.
            let mut scales = 0;
            for j in 0..8 {
                scales |= (low >> (4 * j) & 15 | (high >> (2 * j) & 3) << 4) << (8 * j);
            }
            let d = b.half(head as u16);
            let scale = b.fma(b.scales_u8(scales), b.splat(d), b.splat(-32.0 * d));
            let q = b.transpose(lookup(b, halves(b, p.add(8), 16), &CURVE));
            Unpacked { q, scale, min: b.splat(0.0) }
        }
    }
}

/// -1, 0 and 1 in two bits.
#[derive(Clone, Copy)]
pub(crate) struct Tq2_0;

impl Format for Tq2_0 {
    const BLOCK_BYTES: usize = 66;
    const VALUES: Values = Values::Less(0);

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock; the read is unaligned.
        unsafe {
            let d = b.half(u16::from_le(p.add(64).cast::<u16>().read_unaligned()));
            Unpacked { q: b.transpose(quarters(b, p)), scale: b.splat(d), min: b.splat(0.0) }
        }
    }
}
