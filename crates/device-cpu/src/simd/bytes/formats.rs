//! The block formats as superblocks of 256 codes with scales a lane.
//!
//! `turbospark_tensor::block` has their layouts. An element is `scale (q - 2^SHIFT)`, or `scale q - min` where a
//! format has mins.

use super::{Bytes, SUPER};

/// A superblock, unpacked.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked<B: Bytes> {
    /// The codes, transposed.
    pub q: [B::V; 4],
    /// A factor a lane.
    pub scale: B::F,
    /// What is subtracted, negated, a lane; zero of a format without mins.
    pub min: B::F,
}

/// A block format.
pub(crate) trait Format: Copy + Send + Sync + 'static {
    /// Elements of a block.
    const BLOCK: usize;
    /// Bytes of a block.
    const BLOCK_BYTES: usize;
    /// Whether its codes are signed bytes.
    const SIGNED: bool = false;
    /// Whether it has mins.
    const MINS: bool = false;
    /// The code of zero, as a power of two; of a format with signed codes what flips their sign bit.
    const SHIFT: u32;

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
    const SIGNED: bool = true;
    const SHIFT: u32 = 7;

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

/// A scale and half bytes.
#[derive(Clone, Copy)]
pub(crate) struct Q4_0;

impl Format for Q4_0 {
    const BLOCK: usize = 32;
    const BLOCK_BYTES: usize = 18;
    const SHIFT: u32 = 3;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let mut q = [b.load_twice(p.add(2), p.add(20)); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let two = b.load_twice(p.add(36 * i + 2), p.add(36 * i + 20));
                *q = b.and(b.shift::<0, 4, 0, 4>(two), 15);
            }
            let q = b.transpose(q);
            Unpacked { q, scale: b.scales_f16(p, 18), min: b.splat(0.0) }
        }
    }
}

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
    const BLOCK: usize = 256;
    const BLOCK_BYTES: usize = 144;
    const MINS: bool = true;
    const SHIFT: u32 = 0;

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
    const BLOCK: usize = 256;
    const BLOCK_BYTES: usize = 176;
    const MINS: bool = true;
    const SHIFT: u32 = 0;

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
    const BLOCK: usize = 256;
    const BLOCK_BYTES: usize = 210;
    const SHIFT: u32 = 5;

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
