//! The block formats whose codes are indices into a grid, and `TQ1_0`: superblocks of 256 elements all.
//!
//! Entries are looked up one by one, eight elements each, and put together in a vector; signs are then a mask.

use turbospark_tensor::block::grids::{self, Grid};

use super::Bytes;
use super::formats::{Format, Unpacked, Values};

/// Little-endian reads at any alignment.
///
/// # Safety
/// Eight, four or two bytes are readable.
#[inline(always)]
unsafe fn u64_at(p: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_le(unsafe { p.cast::<u64>().read_unaligned() })
}

/// See [`u64_at`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn u32_at(p: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    u32::from_le(unsafe { p.cast::<u32>().read_unaligned() })
}

/// See [`u64_at`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn u16_at(p: *const u8) -> u16 {
    // SAFETY: the caller's promise.
    u16::from_le(unsafe { p.cast::<u16>().read_unaligned() })
}

/// An entry of eight as it lies in memory.
#[inline(always)]
fn eight<const N: usize>(grid: &Grid<8, N>, index: usize) -> u64 {
    // Volatile: eight loads in a row become a gather, which takes three times as long on the CPUs measured.
    // SAFETY: an entry of eight bytes, which begins on a multiple of as many.
    unsafe { (&raw const grid.0[index % N]).cast::<u64>().read_volatile() }
}

/// Two entries of four.
#[inline(always)]
fn fours<const N: usize>(grid: &Grid<4, N>, first: usize, second: usize) -> u64 {
    // SAFETY: as in `eight`, of four bytes.
    let four = |index: usize| u64::from(unsafe { (&raw const grid.0[index % N]).cast::<u32>().read_volatile() });
    let (first, second) = (four(first), four(second));
    if cfg!(target_endian = "little") { first | second << 32 } else { first << 32 | second }
}

/// Signs of eights, seven bits of each byte: the eighth makes the number of minuses even.
#[inline(always)]
fn even(seven: u64) -> u64 {
    let mut odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    seven | (odd & 0x0101_0101_0101_0101) << 7
}

/// The low 28 bits of two words, seven to a byte.
#[inline(always)]
fn sevens(first: u32, second: u32) -> u64 {
    let both = u64::from(first) | u64::from(second) << 32;
    let byte = |i: u32| both << i & (0x7f_0000_007f << (8 * i));
    byte(0) | byte(1) | byte(2) | byte(3)
}

/// Half bytes of eight as sixteen bytes, the low one of each first.
#[inline(always)]
fn halves(bytes: u64) -> [u8; 16] {
    std::array::from_fn(|i| (bytes >> (4 * i)) as u8 & 15)
}

/// `d (1/2 + n) q`, with `n` of four bits for each eight eights of a block.
#[inline(always)]
fn half_more<B: Bytes>(b: B, n: B::F, d: f32) -> B::F {
    b.fma(n, b.splat(d), b.splat(0.5 * d))
}

/// Indices of eight bits.
#[derive(Clone, Copy)]
pub(crate) struct Iq2Xxs;

impl Format for Iq2Xxs {
    const BLOCK_BYTES: usize = 66;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let d = b.half(u16_at(p));
            let (mut q, mut scales) = ([b.words([0; 8]); 4], 0);
            for (i, q) in q.iter_mut().enumerate() {
                let parts = [u64_at(p.add(2 + 16 * i)), u64_at(p.add(10 + 16 * i))];
                let entry = |k: usize| eight(&grids::IQ2_XXS, (parts[k / 4] >> (8 * (k % 4))) as usize & 255);
                let signs = parts.map(|part| (part >> 32) as u32);
                *q = b.negate(b.words(std::array::from_fn(entry)), even(sevens(signs[0], signs[1])));
                scales |= (parts[0] >> 60 | parts[1] >> 60 << 8) << (16 * i);
            }
            let scale = half_more(b, b.scales_u8(scales), 0.25 * d);
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// Indices of nine bits, scales of sixteen elements.
#[derive(Clone, Copy)]
pub(crate) struct Iq2Xs;

impl Format for Iq2Xs {
    const BLOCK_BYTES: usize = 74;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let d = b.half(u16_at(p));
            let mut q = [b.words([0; 8]); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let codes: [u16; 8] = std::array::from_fn(|k| u16_at(p.add(2 + 16 * i + 2 * k)));
                let mut signs = 0;
                for (k, code) in codes.iter().enumerate() {
                    signs |= u64::from(code >> 9) << (8 * k);
                }
                let entries = codes.map(|code| eight(&grids::IQ2_XS, usize::from(code & 511)));
                *q = b.negate(b.words(entries), even(signs));
            }
            let scale = half_more(b, b.scales_i8(halves(u64_at(p.add(66))).as_ptr()), 0.25 * d);
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// Indices of ten bits, signs and scales of sixteen elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Iq2S;

impl Format for Iq2S {
    const BLOCK_BYTES: usize = 82;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let d = b.half(u16_at(p));
            let mut q = [b.words([0; 8]); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let (low, high) = (u64_at(p.add(2 + 8 * i)), usize::from(u16_at(p.add(66 + 2 * i))));
                let entry = |k: usize| {
                    let index = (low >> (8 * k)) as usize & 255 | (high >> (2 * k) & 3) << 8;
                    eight(&grids::IQ2_S, index)
                };
                *q = b.negate(b.words(std::array::from_fn(entry)), u64_at(p.add(34 + 8 * i)));
            }
            let scale = half_more(b, b.scales_i8(halves(u64_at(p.add(74))).as_ptr()), 0.25 * d);
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// Indices of eight bits for each four.
#[derive(Clone, Copy)]
pub(crate) struct Iq3Xxs;

impl Format for Iq3Xxs {
    const BLOCK_BYTES: usize = 98;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let d = b.half(u16_at(p));
            let (mut q, mut scales) = ([b.words([0; 8]); 4], 0);
            for (i, q) in q.iter_mut().enumerate() {
                let parts = [u64_at(p.add(2 + 16 * i)), u64_at(p.add(10 + 16 * i))];
                let index = |k: usize| (parts[k / 8] >> (8 * (k % 8))) as usize & 255;
                let entries = std::array::from_fn(|k| fours(&grids::IQ3_XXS, index(2 * k), index(2 * k + 1)));
                let words = [u32_at(p.add(66 + 8 * i)), u32_at(p.add(70 + 8 * i))];
                *q = b.negate(b.words(entries), even(sevens(words[0], words[1])));
                scales |= u64::from(words[0] >> 28 | words[1] >> 28 << 8) << (16 * i);
            }
            let scale = half_more(b, b.scales_u8(scales), 0.5 * d);
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// Indices of nine bits for each four, signs apart.
#[derive(Clone, Copy)]
pub(crate) struct Iq3S;

impl Format for Iq3S {
    const BLOCK_BYTES: usize = 110;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let d = b.half(u16_at(p));
            let mut q = [b.words([0; 8]); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let parts = [u64_at(p.add(2 + 16 * i)), u64_at(p.add(10 + 16 * i))];
                let high = usize::from(u16_at(p.add(66 + 2 * i)));
                let index = |k: usize| (parts[k / 8] >> (8 * (k % 8))) as usize & 255 | (high >> k & 1) << 8;
                let entries = std::array::from_fn(|k| fours(&grids::IQ3_S, index(2 * k), index(2 * k + 1)));
                *q = b.negate(b.words(entries), u64_at(p.add(74 + 8 * i)));
            }
            let scales = u64::from_le_bytes(*halves(u64::from(u32_at(p.add(106)))).first_chunk().expect("of sixteen"));
            let scale = b.fma(b.scales_u8(scales), b.splat(2.0 * d), b.splat(d));
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// -1, 0 and 1, moved by an eighth for each 32 elements; indices of eleven bits.
#[derive(Clone, Copy)]
pub(crate) struct Iq1S;

impl Format for Iq1S {
    const BLOCK_BYTES: usize = 50;
    const VALUES: Values = Values::Signed;
    const MINS: bool = true;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let d = b.half(u16_at(p));
            let (mut q, mut scales, mut shifts) = ([b.words([0; 8]); 4], 0, 0);
            for (i, q) in q.iter_mut().enumerate() {
                let (low, words) = (u64_at(p.add(2 + 8 * i)), u32_at(p.add(34 + 4 * i)));
                let entry = |k: usize| {
                    let high = words >> (16 * (k / 4) + 3 * (k % 4)) & 7;
                    eight(&grids::IQ1, (low >> (8 * k)) as usize & 255 | (high as usize) << 8)
                };
                *q = b.words(std::array::from_fn(entry));
                let both =
                    |shift: u32, mask: u32| u64::from(words >> shift & mask | (words >> (16 + shift) & mask) << 8);
                scales |= both(12, 7) << (16 * i);
                shifts |= both(15, 1) << (16 * i);
            }
            let scale = b.fma(b.scales_u8(scales), b.splat(2.0 * d), b.splat(d));
            // Up an eighth where the bit is not set, else down.
            let shift = b.fma(b.scales_u8(shifts), b.splat(-0.25), b.splat(0.125));
            Unpacked { q: b.transpose(q), scale, min: b.mul(scale, shift) }
        }
    }
}

/// The same, moved for each eight elements, scales of sixteen.
#[derive(Clone, Copy)]
pub(crate) struct Iq1M;

impl Format for Iq1M {
    const BLOCK_BYTES: usize = 56;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock.
        unsafe {
            let words = u64_at(p.add(48));
            let fours = [12, 28, 44, 60].map(|at| (words >> at) as u16 & 15);
            let d = b.half(fours[0] | fours[1] << 4 | fours[2] << 8 | fours[3] << 12);
            let mut q = [b.words([0; 8]); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let (low, high) = (u64_at(p.add(8 * i)), u32_at(p.add(32 + 4 * i)));
                let entry = |k: usize| {
                    let index = (low >> (8 * k)) as usize & 255 | (high as usize >> (4 * k) & 7) << 8;
                    eight(&grids::IQ1, index)
                };
                // Eight times the value and one more; one less where it is moved down, by way of the negative.
                let mut down = u64::from(high >> 3 & 0x1111_1111);
                down = (down | down << 16) & 0x0000_ffff_0000_ffff;
                down = (down | down << 8) & 0x00ff_00ff_00ff_00ff;
                down = ((down | down << 4) & 0x0f0f_0f0f_0f0f_0f0f) * 255;
                let values = b.and(b.shift::<-3, -3, -3, -3>(b.words(std::array::from_fn(entry))), 0xf8);
                let moved = b.or(b.negate(values, down), b.spread_bits(u64::MAX, 1));
                *q = b.negate(moved, down);
            }
            let scales: [u8; 16] = std::array::from_fn(|j| (words >> (16 * (j / 4) + 3 * (j % 4))) as u8 & 7);
            let scale = b.fma(b.scales_i8(scales.as_ptr()), b.splat(0.25 * d), b.splat(0.125 * d));
            Unpacked { q: b.transpose(q), scale, min: b.splat(0.0) }
        }
    }
}

/// -1, 0 and 1, five to a byte.
#[derive(Clone, Copy)]
pub(crate) struct Tq1_0;

impl Format for Tq1_0 {
    const BLOCK_BYTES: usize = 54;
    const VALUES: Values = Values::Less(0);

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> Unpacked<B> {
        // SAFETY: within the superblock; an array of as many bytes as are loaded.
        unsafe {
            let mut codes = [0; 256];
            let (wide, rest) = codes.split_at_mut(160);
            let (narrow, last) = rest.split_at_mut(80);
            digits(&*p.cast::<[u8; 32]>(), wide);
            digits(&*p.add(32).cast::<[u8; 16]>(), narrow);
            digits(&*p.add(48).cast::<[u8; 4]>(), last);
            let part = |i: usize| b.load(codes.as_ptr().add(64 * i));
            let q = b.transpose([part(0), part(1), part(2), part(3)]);
            Unpacked { q, scale: b.splat(b.half(u16_at(p.add(52)))), min: b.splat(0.0) }
        }
    }
}

/// The first digit of every byte, then the second of every byte, and so on.
#[inline(always)]
fn digits<const N: usize>(bytes: &[u8; N], out: &mut [u8]) {
    let mut bytes = *bytes;
    for row in out.as_chunks_mut::<N>().0 {
        for (o, byte) in row.iter_mut().zip(&mut bytes) {
            // A third of 256 is 85 and a third. Comparisons would go by way of mask registers.
            *o = byte.saturating_sub(85).min(1) + byte.saturating_sub(170).min(1);
            *byte = byte.wrapping_mul(3);
        }
    }
}
