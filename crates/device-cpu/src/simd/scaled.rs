//! Weights whose scales lie apart, dequantised as `turbospark_tensor::scaled` has it, bit for bit.
//!
//! Loops over a few codes at a time, which compile to vectors of the instruction set that they are inlined into.

use turbospark_tensor::{Code, DType, ScaledForm, e2m1_to_f32, e4m3_to_f32, e8m0_to_f32, f16_to_f32};

use super::Simd;
use super::stored::{Bf16, F32, Stored};

/// A row.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// First byte of its codes.
    pub codes: *const u8,
    /// First byte of its scales.
    pub scales: *const u8,
    /// Of its biases.
    pub biases: Option<*const u8>,
    /// Of scales and biases.
    pub dtype: DType,
    /// Codes and groups.
    pub form: ScaledForm,
}

impl Row {
    /// Scale `g`.
    ///
    /// # Safety
    /// It is readable.
    #[inline(always)]
    pub(crate) unsafe fn scale(&self, g: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { scale(self.scales, self.dtype, g) }
    }
}

/// Scale or bias `g`.
///
/// # Safety
/// It is readable.
#[inline(always)]
pub(super) unsafe fn scale(p: *const u8, dtype: DType, g: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => F32::one(p.wrapping_add(4 * g)),
            DType::BF16 => Bf16::one(p.wrapping_add(2 * g)),
            DType::F16 => f16_to_f32(p.wrapping_add(2 * g).cast::<u16>().read_unaligned()),
            DType::F8_E8M0 => e8m0_to_f32(*p.wrapping_add(g)),
            _ => e4m3_to_f32(*p.wrapping_add(g)),
        }
    }
}

/// Dequantises elements `first..first + out.len()` of a row.
///
/// # Safety
/// The row has these elements; `first` is a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn dequantise<S: Simd>(_: S, row: Row, first: usize, out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match row.form.code() {
            Code::Unsigned(2) => groups::<2>(row, first, out, unsigned),
            Code::Unsigned(3) => groups::<3>(row, first, out, unsigned),
            Code::Unsigned(4) => groups::<4>(row, first, out, unsigned),
            Code::Unsigned(5) => groups::<5>(row, first, out, unsigned),
            Code::Unsigned(6) => groups::<6>(row, first, out, unsigned),
            Code::Unsigned(_) => groups::<8>(row, first, out, unsigned),
            Code::Signed8 => groups::<8>(row, first, out, signed),
            Code::E2M1 => groups::<4>(row, first, out, e2m1_to_f32),
            Code::E4M3 => groups::<8>(row, first, out, e4m3_to_f32),
        }
    }
}

#[inline(always)]
fn unsigned(code: u8) -> f32 {
    f32::from(code)
}

#[inline(always)]
fn signed(code: u8) -> f32 {
    f32::from(code as i8)
}

/// Elements that are unpacked at a time.
pub(super) const STEP: usize = 32;

/// [`dequantise`] for codes of so many bits.
///
/// # Safety
/// As [`dequantise`].
#[inline(always)]
unsafe fn groups<const BITS: usize>(row: Row, first: usize, out: &mut [f32], value: impl Fn(u8) -> f32) {
    let group = row.form.group();
    let (mut at, end) = (first, first + out.len());
    while at < end {
        let g = at / group;
        let next = end.min((g + 1) * group);
        // SAFETY: the caller's promise: the group's scale, and codes up to `end`. Groups begin at multiples of 16, whose
        // codes begin at whole bytes.
        unsafe {
            let s = scale(row.scales, row.dtype, g);
            let b = row.biases.map(|b| scale(b, row.dtype, g));
            while at < next {
                let some = STEP.min(next - at);
                let bytes = row.codes.wrapping_add(at / 8 * BITS);
                let out = out.as_mut_ptr().add(at - first);
                if some == STEP {
                    step::<BITS>(bytes, s, b, &mut *out.cast(), &value);
                } else {
                    let (mut packed, mut wide) = ([0u8; STEP], [0f32; STEP]);
                    std::ptr::copy_nonoverlapping(bytes, packed.as_mut_ptr(), (some * BITS).div_ceil(8));
                    step::<BITS>(packed.as_ptr(), s, b, &mut wide, &value);
                    std::ptr::copy_nonoverlapping(wide.as_ptr(), out, some);
                }
                at += some;
            }
        }
    }
}

/// Elements that share a scale and perhaps a bias.
///
/// # Safety
/// Their codes are readable.
#[inline(always)]
unsafe fn step<const BITS: usize>(
    codes: *const u8,
    scale: f32,
    bias: Option<f32>,
    out: &mut [f32; STEP],
    value: &impl Fn(u8) -> f32,
) {
    // SAFETY: the caller's promise.
    let codes = unsafe { unpack::<BITS>(codes) };
    for i in 0..STEP {
        out[i] = value(codes[i]) * scale;
    }
    if let Some(bias) = bias {
        for o in out {
            *o += bias;
        }
    }
}

/// Codes from `4 BITS` bytes.
///
/// # Safety
/// They are readable.
#[inline(always)]
pub(super) unsafe fn unpack<const BITS: usize>(p: *const u8) -> [u8; STEP] {
    let mut out = [0; STEP];
    // SAFETY: the caller's promise; arrays of bytes.
    unsafe {
        match BITS {
            8 => out = *p.cast(),
            4 => {
                let bytes: &[u8; 16] = &*p.cast();
                for i in 0..16 {
                    out[2 * i] = bytes[i] & 15;
                    out[2 * i + 1] = bytes[i] >> 4;
                }
            }
            _ => {
                for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    *out = spread::<BITS>(read::<BITS>(p.add(BITS * i))).to_le_bytes();
                }
            }
        }
    }
    out
}

/// `BITS` bytes, the first lowest.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn read<const BITS: usize>(p: *const u8) -> u64 {
    // In at most two reads, which lie within: a copy of an odd length is a call.
    // SAFETY: the caller's promise; the reads are unaligned.
    unsafe {
        let two = |at: usize| u64::from(u16::from_le(p.add(at).cast::<u16>().read_unaligned()));
        let four = || u64::from(u32::from_le(p.cast::<u32>().read_unaligned()));
        match BITS {
            2 => two(0),
            3 => two(0) | u64::from(*p.add(2)) << 16,
            5 => four() | u64::from(*p.add(4)) << 32,
            _ => four() | two(4) << 32,
        }
    }
}

/// Eight codes, one after the other in the low bits, to a byte each: by halves, three times.
#[inline(always)]
fn spread<const BITS: usize>(codes: u64) -> u64 {
    let step = |v: u64, count: usize, mask: u64| {
        let low = ((1u64 << (count * BITS)) - 1) * mask;
        (v & low) | (v & low << (count * BITS)) << (count * (8 - BITS))
    };
    let v = step(codes, 4, 1);
    let v = step(v, 2, 1 | 1 << 32);
    step(v, 1, 1 | 1 << 16 | 1 << 32 | 1 << 48)
}
