//! Block formats as superblocks of 256 codes with scales a lane; here those whose blocks have 32 elements.
//!
//! `turbospark_tensor::block` has their layouts. An element is `scale value(q)`, plus `min` where a format has mins.

use super::{Bytes, SUPER};

/// A superblock, unpacked.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked<B: Bytes> {
    /// The codes, transposed.
    pub q: [B::V; 4],
    /// A factor a lane.
    pub scale: B::F,
    /// What is added, a lane; zero of a format without mins.
    pub min: B::F,
}

/// What codes stand for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Themselves, 0 to 63.
    Small,
    /// Themselves less a power of two; 0 to 63.
    Less(u32),
    /// Signed bytes.
    Signed,
    /// Unsigned bytes.
    Wide,
}

/// A block format.
pub(crate) trait Format: Copy + Send + Sync + 'static {
    /// Elements of a block.
    const BLOCK: usize = SUPER;
    /// Bytes of a block.
    const BLOCK_BYTES: usize;
    /// What its codes stand for, once unpacked.
    const VALUES: Values;
    /// Whether it has mins.
    const MINS: bool = false;

    /// Bytes of a superblock.
    const BYTES: usize = SUPER / Self::BLOCK * Self::BLOCK_BYTES;

    /// Unpacks a superblock.
    ///
    /// # Safety
    /// Its bytes are readable.
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B>;
}

/// A scale and signed bytes.
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;

impl Format for Q8_0 {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 34;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let mut q = [b.load_halves(p.add(2), p.add(36)); 4];
            for (i, q) in q.iter_mut().enumerate().skip(1) {
                *q = b.load_halves(p.add(68 * i + 2), p.add(68 * i + 36));
            }
            let q = b.transpose(q);
            Unpacked { q, scale: b.scales_f16(p, 34), min: b.splat(0.0) }
        }
    }
}

/// Half bytes of eight blocks, `stride` bytes from one to the next: a block's low halves, then its high ones.
///
/// # Safety
/// Sixteen bytes of each are readable.
#[inline(always)]
pub(super) unsafe fn halves<B: Bytes>(b: B, p: *const u8, stride: usize) -> [B::V; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut q = [b.load_twice(p, p.add(stride)); 4];
        for (i, q) in q.iter_mut().enumerate() {
            let p = p.add(2 * i * stride);
            *q = b.and(b.shift::<0, 4, 0, 4>(b.load_twice(p, p.add(stride))), 15);
        }
        q
    }
}

/// The same with a fifth bit, those of a block in four bytes before them.
///
/// # Safety
/// As [`halves`], and the four bytes.
#[inline(always)]
unsafe fn fifths<B: Bytes>(b: B, p: *const u8, stride: usize) -> [B::V; 4] {
    // SAFETY: the caller's promise; the reads are unaligned.
    unsafe {
        let mut q = halves(b, p, stride);
        let bits = |i: usize| u64::from(u32::from_le(p.add(i * stride).sub(4).cast::<u32>().read_unaligned()));
        for (i, q) in q.iter_mut().enumerate() {
            *q = b.or(*q, b.spread_bits(bits(2 * i) | bits(2 * i + 1) << 32, 16));
        }
        q
    }
}

/// A scale and half bytes.
#[derive(Clone, Copy)]
pub(crate) struct Q4_0;

impl Format for Q4_0 {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 18;
    const VALUES: Values = Values::Less(3);

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let q = b.transpose(halves(b, p.add(2), 18));
            Unpacked { q, scale: b.scales_f16(p, 18), min: b.splat(0.0) }
        }
    }
}

/// A scale, a min and half bytes.
#[derive(Clone, Copy)]
pub(crate) struct Q4_1;

impl Format for Q4_1 {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 20;
    const VALUES: Values = Values::Small;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let q = b.transpose(halves(b, p.add(4), 20));
            Unpacked { q, scale: b.scales_f16(p, 20), min: b.scales_f16(p.add(2), 20) }
        }
    }
}

/// A scale and five bits.
#[derive(Clone, Copy)]
pub(crate) struct Q5_0;

impl Format for Q5_0 {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 22;
    const VALUES: Values = Values::Less(4);

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let q = b.transpose(fifths(b, p.add(6), 22));
            Unpacked { q, scale: b.scales_f16(p, 22), min: b.splat(0.0) }
        }
    }
}

/// A scale, a min and five bits.
#[derive(Clone, Copy)]
pub(crate) struct Q5_1;

impl Format for Q5_1 {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 24;
    const VALUES: Values = Values::Small;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let q = b.transpose(fifths(b, p.add(8), 24));
            Unpacked { q, scale: b.scales_f16(p, 24), min: b.scales_f16(p.add(2), 24) }
        }
    }
}

/// What the codes of `IQ4_NL` and `IQ4_XS` stand for, as bytes.
pub(super) const CURVE: [u8; 16] = {
    let curve = [-127i8, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let (mut bytes, mut i) = ([0; 16], 0);
    while i < 16 {
        bytes[i] = curve[i] as u8;
        i += 1;
    }
    bytes
};

/// Twice an E2M1 float, and 16 more.
pub(super) const E2M1: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

/// A table's entries for codes.
#[inline(always)]
pub(super) fn lookup<B: Bytes>(b: B, mut q: [B::V; 4], table: &[u8; 16]) -> [B::V; 4] {
    for q in &mut q {
        *q = b.lookup(*q, table);
    }
    q
}

/// A scale and half bytes that stand for points of a curve.
#[derive(Clone, Copy)]
pub(crate) struct Iq4Nl;

impl Format for Iq4Nl {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 18;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let q = b.transpose(lookup(b, halves(b, p.add(2), 18), &CURVE));
            Unpacked { q, scale: b.scales_f16(p, 18), min: b.splat(0.0) }
        }
    }
}

/// A power of two and four-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct MxFp4;

impl Format for MxFp4 {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 17;
    const VALUES: Values = Values::Less(4);

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let q = b.transpose(lookup(b, halves(b, p.add(1), 17), &E2M1));
            let scales = u64::from_le_bytes(std::array::from_fn(|block| *p.add(17 * block)));
            Unpacked { q, scale: b.scales_half_e8m0(scales), min: b.splat(0.0) }
        }
    }
}
