//! Stored element types, widened exactly as they are loaded.

use turbospark_device::op::WeightLayout;
use turbospark_tensor::{DType, ScaledForm};

use super::Simd;

/// A float type in memory, at any alignment.
pub(crate) trait Stored: Copy + Send + Sync + 'static {
    /// Bytes of one element.
    const SIZE: usize;
    /// Whether it is bf16, which some units take as it is.
    const IS_BF16: bool = false;

    /// Loads `LANES` elements.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::V;

    /// One element.
    ///
    /// # Safety
    /// It is readable.
    unsafe fn one(p: *const u8) -> f32;

    /// Loads the first `n <= LANES` elements; the other lanes are zero.
    ///
    /// # Safety
    /// As [`Stored::load`], for `n` elements.
    #[inline(always)]
    unsafe fn load_some<S: Simd>(s: S, p: *const u8, n: usize) -> S::V {
        let mut wide = [0f32; 16];
        for (i, w) in wide.iter_mut().enumerate().take(n) {
            // SAFETY: the caller vouches for `n` elements.
            *w = unsafe { Self::one(p.add(i * Self::SIZE)) };
        }
        // SAFETY: no vector has more than 16 lanes.
        unsafe { s.load(wide.as_ptr()) }
    }
}

/// f32.
#[derive(Clone, Copy)]
pub(crate) struct F32;

/// bf16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

/// f16.
#[derive(Clone, Copy)]
pub(crate) struct F16;

impl Stored for F32 {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load(p.cast()) }
    }

    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { p.cast::<f32>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_some<S: Simd>(s: S, p: *const u8, n: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_some(p.cast(), n) }
    }
}

impl Stored for Bf16 {
    const SIZE: usize = 2;
    const IS_BF16: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's promise; the read is unaligned.
        f32::from_bits((unsafe { p.cast::<u16>().read_unaligned() } as u32) << 16)
    }
}

impl Stored for F16 {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_f16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's promise; the read is unaligned.
        half::f16::from_bits(unsafe { p.cast::<u16>().read_unaligned() }).to_f32()
    }
}

/// Runs the body with `$t` standing for the stored type of `$dtype`.
macro_rules! with_stored {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            turbospark_tensor::DType::BF16 => {
                type $t = crate::simd::stored::Bf16;
                $body
            }
            turbospark_tensor::DType::F16 => {
                type $t = crate::simd::stored::F16;
                $body
            }
            turbospark_tensor::DType::F32 => {
                type $t = crate::simd::stored::F32;
                $body
            }
            other => unreachable!("checked: {other} is no float type"),
        }
    };
}
pub(crate) use with_stored;

/// A linear weight in memory.
#[derive(Clone, Copy)]
pub(crate) struct Weight {
    /// First byte; any alignment.
    pub ptr: *const u8,
    /// A float type, or a block type with rows of whole blocks; of a weight with scales apart that of its codes.
    pub dtype: DType,
    /// Which of the two axes lies outermost.
    pub layout: WeightLayout,
    /// Elements of `dtype` from one index of the outer axis to the next.
    pub stride: usize,
    /// Of a weight whose scales lie apart.
    pub scales: Option<Scales>,
}

/// Scales and biases that lie apart from the codes; dense.
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    /// First byte; any alignment.
    pub first: *const u8,
    /// As `first`, for biases.
    pub biases: Option<*const u8>,
    /// A float type, F8_E8M0 or F8_E4M3.
    pub dtype: DType,
    /// Scales of a row.
    pub stride: usize,
    /// What codes stand for, and how many elements share a scale.
    pub form: ScaledForm,
    /// The input that each column belongs to, where they are in another order: as many as columns, aligned, and inputs
    /// that there are.
    pub order: Option<*const i32>,
}

impl Weight {
    /// Whether its rows are dequantised before a kernel of plain weights may take them.
    pub(crate) fn is_quantised(&self) -> bool {
        self.dtype.is_block() || self.scales.is_some()
    }

    /// The order of its columns, if they have one; see [`Scales::order`].
    pub(crate) fn order(&self) -> Option<*const i32> {
        self.scales.and_then(|scales| scales.order)
    }

    /// Whether part of a block takes as long as all of it to dequantise.
    pub(crate) fn comes_whole(&self) -> bool {
        self.dtype.is_block() && !super::blocks::in_parts(self.dtype)
    }

    /// Dequantises elements `first..first + out.len()` of row `r` of an `[n, k]` weight, as the reference does; those of
    /// a plain weight are widened.
    ///
    /// # Safety
    /// The row has these elements; both ends are multiples of 32, or the second is the end of the row.
    #[inline(always)]
    pub(crate) unsafe fn dequantise<S: Simd>(&self, s: S, r: usize, first: usize, out: &mut [f32]) {
        let bytes = |elements: usize| self.dtype.bytes(elements).expect("checked: rows of whole blocks");
        let ptr = self.ptr.wrapping_add(bytes(r * self.stride));
        // SAFETY: the caller's promise.
        unsafe {
            match &self.scales {
                Some(scales) => super::scaled::dequantise(s, scales.row(ptr, r), first, out),
                None if self.dtype.is_block() => super::blocks::dequantise(s, self.dtype, ptr, first, out),
                None => Vector { ptr, dtype: self.dtype }.widen(s, first, out),
            }
        }
    }
}

impl Scales {
    /// Row `r`, whose codes are at `codes`.
    #[inline(always)]
    pub(crate) fn row(&self, codes: *const u8, r: usize) -> super::scaled::Row {
        let at = r / self.form.rows() * self.stride * self.dtype.size();
        let (scales, biases) = (self.first.wrapping_add(at), self.biases.map(|b| b.wrapping_add(at)));
        super::scaled::Row { codes, scales, biases, dtype: self.dtype, form: self.form }
    }
}

// SAFETY: a weight is only read, while the buffers it points into are locked by the op that uses it.
unsafe impl Send for Weight {}
// SAFETY: as above.
unsafe impl Sync for Weight {}

/// A dense vector in memory, such as a bias.
#[derive(Clone, Copy)]
pub(crate) struct Vector {
    /// First byte; any alignment.
    pub ptr: *const u8,
    /// A float type.
    pub dtype: DType,
}

// SAFETY: as for `Weight`.
unsafe impl Send for Vector {}
// SAFETY: as above.
unsafe impl Sync for Vector {}

impl Vector {
    /// Widens elements `from..from + out.len()`.
    ///
    /// # Safety
    /// They are readable.
    #[inline(always)]
    pub(crate) unsafe fn widen<S: Simd>(self, s: S, from: usize, out: &mut [f32]) {
        with_stored!(self.dtype, T => {
            let (n, lanes) = (out.len(), S::LANES);
            for i in (0..n).step_by(lanes) {
                let p = self.ptr.wrapping_add((from + i) * T::SIZE);
                let some = lanes.min(n - i);
                // SAFETY: the caller's promise; `some` elements are left in `out`.
                unsafe {
                    let v = if some == lanes { T::load(s, p) } else { T::load_some(s, p, some) };
                    s.store_some(out.as_mut_ptr().add(i), v, some);
                }
            }
        })
    }
}
