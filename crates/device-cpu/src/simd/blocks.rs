//! Weights in quantised blocks, dequantised exactly.
//!
//! The formulas of `turbospark_tensor::block`; those of the common formats are loops over a block's bytes that compile to
//! vectors of the instruction set that they are inlined into. Every product is exact in f32, so the order of factors is
//! free.

use turbospark_tensor::{DType, widen_into};

use super::Simd;

/// Elements of a K format's block.
const K: usize = 256;

/// Dequantises elements `first..first + out.len()` of a row of blocks.
///
/// # Safety
/// `first` and the length are multiples of 32; the row has these elements.
///
/// # Panics
/// Where `dtype` is no block type.
#[inline(always)]
pub(crate) unsafe fn dequantise<S: Simd>(_: S, dtype: DType, row: *const u8, first: usize, out: &mut [f32]) {
    debug_assert!(first.is_multiple_of(32) && out.len().is_multiple_of(32));
    let (count, to) = (out.len(), out.as_mut_ptr());
    // SAFETY: the caller's promise: whole blocks of 32, and of the K formats those parts that are asked for.
    unsafe {
        match dtype {
            DType::Q8_0 => blocks::<34>(row, first, count, to, q8_0),
            DType::Q4_0 => blocks::<18>(row, first, count, to, q4_0),
            DType::Q4_K => supers::<144>(row, first, count, to, q4_k),
            DType::Q5_K => supers::<176>(row, first, count, to, q5_k),
            DType::Q6_K => supers::<210>(row, first, count, to, q6_k),
            other => whole(other, row, first, out),
        }
    }
}

/// Whether [`dequantise`] has loops for parts of its blocks.
pub(super) fn in_parts(dtype: DType) -> bool {
    matches!(dtype, DType::Q8_0 | DType::Q4_0 | DType::Q4_K | DType::Q5_K | DType::Q6_K)
}

/// [`dequantise`] for any block type, by whole blocks: those that `out` has in part only go by way of the stack.
///
/// # Safety
/// As [`dequantise`].
unsafe fn whole(dtype: DType, row: *const u8, first: usize, out: &mut [f32]) {
    let block = dtype.block();
    let bytes = |from: usize, blocks: usize| {
        let at = row.wrapping_add(from / block.elements * block.bytes);
        // SAFETY: the caller's promise: blocks that hold elements of `out`.
        unsafe { std::slice::from_raw_parts(at, blocks * block.bytes) }
    };
    let mut done = 0;
    while done < out.len() {
        let (at, out) = (first + done, &mut out[done..]);
        let skip = at % block.elements;
        if skip == 0 && out.len() >= block.elements {
            let blocks = out.len() / block.elements;
            widen_into(bytes(at, blocks), dtype, &mut out[..blocks * block.elements]);
            done += blocks * block.elements;
        } else {
            let mut wide = [0f32; K];
            widen_into(bytes(at, 1), dtype, &mut wide[..block.elements]);
            let some = out.len().min(block.elements - skip);
            out[..some].copy_from_slice(&wide[skip..][..some]);
            done += some;
        }
    }
}

/// [`dequantise`] for blocks of 32 elements and `N` bytes.
///
/// # Safety
/// As [`dequantise`].
#[inline(always)]
unsafe fn blocks<const N: usize>(
    row: *const u8,
    first: usize,
    count: usize,
    out: *mut f32,
    one: impl Fn(&[u8; N], &mut [f32; 32]),
) {
    for i in 0..count / 32 {
        // SAFETY: the caller's promise; arrays of bytes and f32 of these sizes.
        unsafe { one(&*row.add((first / 32 + i) * N).cast(), &mut *out.add(32 * i).cast()) };
    }
}

/// [`dequantise`] for blocks of 256 elements and `N` bytes, 32 elements (number `j` of eight) at a time.
///
/// # Safety
/// As [`dequantise`].
#[inline(always)]
unsafe fn supers<const N: usize>(
    row: *const u8,
    first: usize,
    count: usize,
    out: *mut f32,
    one: impl Fn(&[u8; N], usize, &mut [f32; 32]),
) {
    for i in 0..count / 32 {
        let at = first + 32 * i;
        // SAFETY: as in `blocks`.
        unsafe { one(&*row.add(at / K * N).cast(), at % K / 32, &mut *out.add(32 * i).cast()) };
    }
}

/// Widens f16. In integers: a loop must not call out.
#[inline(always)]
pub(super) fn half(low: u8, high: u8) -> f32 {
    let bits = u32::from(low) | u32::from(high) << 8;
    let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
    // Exponents count from 15 and not from 127; subnormals come out right, infinity and NaN need theirs.
    let small = f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000);
    let magnitude = if rest < 0x7c00 { small } else { f32::from_bits(0x7f80_0000 | rest << 13) };
    f32::from_bits(sign | magnitude.to_bits())
}

#[inline(always)]
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block[0], block[1]);
    for i in 0..32 {
        out[i] = d * f32::from(block[2 + i] as i8);
    }
}

#[inline(always)]
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block[0], block[1]);
    for i in 0..16 {
        out[i] = d * f32::from((block[2 + i] & 15) as i8 - 8);
        out[16 + i] = d * f32::from((block[2 + i] >> 4) as i8 - 8);
    }
}

/// The scale and the min of group `j`.
#[inline(always)]
fn k_scale(head: &[u8; 16], j: usize) -> (f32, f32) {
    let packed: &[u8; 12] = head[4..].try_into().expect("twelve bytes");
    let (scale, min) = turbospark_tensor::block::k_scale(packed, j);
    (half(head[0], head[1]) * f32::from(scale), half(head[2], head[3]) * f32::from(min))
}

#[inline(always)]
fn q4_k(block: &[u8; 144], j: usize, out: &mut [f32; 32]) {
    let (scale, min) = k_scale(block[..16].try_into().expect("sixteen bytes"), j);
    let codes: &[u8; 32] = block[16 + j / 2 * 32..][..32].try_into().expect("32 bytes");
    let shift = j % 2 * 4;
    for i in 0..32 {
        out[i] = scale * f32::from(codes[i] >> shift & 15) - min;
    }
}

#[inline(always)]
fn q5_k(block: &[u8; 176], j: usize, out: &mut [f32; 32]) {
    let (scale, min) = k_scale(block[..16].try_into().expect("sixteen bytes"), j);
    let codes: &[u8; 32] = block[48 + j / 2 * 32..][..32].try_into().expect("32 bytes");
    let fifth: &[u8; 32] = block[16..48].try_into().expect("32 bytes");
    let shift = j % 2 * 4;
    for i in 0..32 {
        let n = codes[i] >> shift & 15 | (fifth[i] >> j & 1) << 4;
        out[i] = scale * f32::from(n) - min;
    }
}

#[inline(always)]
fn q6_k(block: &[u8; 210], j: usize, out: &mut [f32; 32]) {
    let d = half(block[208], block[209]);
    let (h, g) = (j / 4, j % 4);
    let low: &[u8; 32] = block[64 * h + g % 2 * 32..][..32].try_into().expect("32 bytes");
    let high: &[u8; 32] = block[128 + 32 * h..][..32].try_into().expect("32 bytes");
    let scales = [block[192 + 2 * j], block[193 + 2 * j]].map(|s| d * f32::from(s as i8));
    let shift = g / 2 * 4;
    for (half, scale) in scales.into_iter().enumerate() {
        for i in 16 * half..16 * half + 16 {
            let n = low[i] >> shift & 15 | (high[i] >> (2 * g) & 3) << 4;
            out[i] = scale * f32::from(n as i8 - 32);
        }
    }
}
