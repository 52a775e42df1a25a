//! Rows of quantised weights as superblocks.

use std::marker::PhantomData;

use turbospark_tensor::{DType, ScaledForm};

use super::formats::{E2M1, Format, Unpacked, Values, lookup};
use super::{Bytes, SUPER, Spread, group};
use crate::simd::Simd;
use crate::simd::stored::{Scales, Weight};

/// A weight whose rows are read as superblocks.
pub(crate) trait Packed {
    /// A row.
    type Row: Copy;
    /// What codes stand for.
    const VALUES: Values;
    /// Whether there are mins.
    const MINS: bool;

    /// Row `r`.
    fn row(&self, r: usize) -> Self::Row;

    /// Unpacks superblock `i` of a row.
    ///
    /// # Safety
    /// The row has all of it.
    unsafe fn unpack<B: Bytes>(&self, b: B, row: Self::Row, i: usize) -> Unpacked<B>;

    /// Unpacks superblock `i` of a row, which ends after `some` elements; the others are anything finite.
    ///
    /// # Safety
    /// The row has these elements.
    unsafe fn unpack_some<B: Bytes>(&self, b: B, row: Self::Row, i: usize, some: usize) -> Unpacked<B>;

    /// Asks for what lies `ahead` bytes after superblock `i`.
    fn prefetch<S: Simd>(&self, s: S, row: Self::Row, i: usize, ahead: usize);
}

/// Bytes that no superblock is longer than, and no load leaves that begins in it.
const LONGEST: usize = 272;

/// Bytes ahead of the scales that are asked for: those of the next rows.
const SCALES_AHEAD: usize = 128;

/// Rows of blocks.
pub(crate) struct Blocks<T> {
    first: *const u8,
    /// Bytes of a row.
    row: usize,
    format: PhantomData<T>,
}

impl<T: Format> Blocks<T> {
    /// Those of a weight of that type.
    pub(crate) fn new(w: &Weight) -> Self {
        Blocks { first: w.ptr, row: w.stride / T::BLOCK * T::BLOCK_BYTES, format: PhantomData }
    }
}

impl<T: Format> Packed for Blocks<T> {
    type Row = *const u8;
    const VALUES: Values = T::VALUES;
    const MINS: bool = T::MINS;

    #[inline(always)]
    fn row(&self, r: usize) -> *const u8 {
        self.first.wrapping_add(r * self.row)
    }

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(&self, b: B, row: *const u8, i: usize) -> Unpacked<B> {
        // SAFETY: the caller's promise.
        unsafe { T::unpack(b, row.add(i * T::BYTES)) }
    }

    #[inline(always)]
    unsafe fn unpack_some<B: Bytes>(&self, b: B, row: *const u8, i: usize, some: usize) -> Unpacked<B> {
        let mut bytes = [0; LONGEST];
        // SAFETY: the caller's promise; fewer blocks than a superblock has.
        unsafe {
            let from = row.add(i * T::BYTES);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), some / T::BLOCK * T::BLOCK_BYTES);
            T::unpack(b, bytes.as_ptr())
        }
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, row: *const u8, i: usize, ahead: usize) {
        for line in (0..T::BYTES).step_by(64) {
            s.prefetch(row.wrapping_add(i * T::BYTES + ahead + line));
        }
    }
}

/// How codes whose scales lie apart become bytes.
pub(crate) trait Codes {
    /// Bits of a code.
    const BITS: usize;
    /// What the bytes stand for.
    const VALUES: Values;
    /// What scales are multiplied by.
    const FACTOR: f32 = 1.0;

    /// Unpacks a superblock's, transposed.
    ///
    /// # Safety
    /// `32 BITS` bytes are readable.
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> [B::V; 4];
}

/// Unsigned codes of a few bits.
pub(crate) struct Few<const BITS: usize>;

impl<const BITS: usize> Codes for Few<BITS> {
    const BITS: usize = BITS;
    const VALUES: Values = Values::Small;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> [B::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { b.fields::<BITS>(p) }
    }
}

/// 256 bytes, transposed.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn bytes<B: Bytes>(b: B, p: *const u8) -> [B::V; 4] {
    // SAFETY: the caller's promise.
    b.transpose(unsafe { [b.load(p), b.load(p.add(64)), b.load(p.add(128)), b.load(p.add(192))] })
}

/// Unsigned bytes.
pub(crate) struct Unsigned;

impl Codes for Unsigned {
    const BITS: usize = 8;
    const VALUES: Values = Values::Wide;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> [B::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { bytes(b, p) }
    }
}

/// Signed bytes.
pub(crate) struct Signed;

impl Codes for Signed {
    const BITS: usize = 8;
    const VALUES: Values = Values::Signed;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> [B::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { bytes(b, p) }
    }
}

/// Four-bit floats.
pub(crate) struct Floats;

impl Codes for Floats {
    const BITS: usize = 4;
    const VALUES: Values = Values::Less(4);
    const FACTOR: f32 = 0.5;

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(b: B, p: *const u8) -> [B::V; 4] {
        // SAFETY: the caller's promise.
        unsafe { lookup(b, b.fields::<4>(p), &E2M1) }
    }
}

/// What is known of scales when a kernel is compiled.
pub(crate) trait Known {
    /// Their type, whether there are biases, and that a group divides a superblock.
    const KNOWN: Option<(DType, bool)>;

    /// Whether these scales are such.
    fn fits(s: &Scales) -> bool {
        let divides = SUPER.is_multiple_of(s.form.group());
        Self::KNOWN.is_none_or(|(dtype, biases)| dtype == s.dtype && biases == s.biases.is_some() && divides)
    }
}

/// Nothing.
pub(crate) struct Nothing;

impl Known for Nothing {
    const KNOWN: Option<(DType, bool)> = None;
}

/// bf16 with biases.
pub(crate) struct Bf16Biased;

impl Known for Bf16Biased {
    const KNOWN: Option<(DType, bool)> = Some((DType::BF16, true));
}

/// f16 with biases.
pub(crate) struct F16Biased;

impl Known for F16Biased {
    const KNOWN: Option<(DType, bool)> = Some((DType::F16, true));
}

/// f32 with biases, as the readings of AWQ and GPTQ have them.
pub(crate) struct F32Biased;

impl Known for F32Biased {
    const KNOWN: Option<(DType, bool)> = Some((DType::F32, true));
}

/// Powers of two.
pub(crate) struct Powers;

impl Known for Powers {
    const KNOWN: Option<(DType, bool)> = Some((DType::F8_E8M0, false));
}

/// E4M3 without biases, as `nvfp4` has them.
pub(crate) struct Eights;

impl Known for Eights {
    const KNOWN: Option<(DType, bool)> = Some((DType::F8_E4M3, false));
}

/// Rows of codes whose scales lie apart.
pub(crate) struct Apart<C, K> {
    codes: *const u8,
    /// Bytes of a row of codes.
    row: usize,
    scales: *const u8,
    /// Null where there are none.
    biases: *const u8,
    dtype: DType,
    /// Bytes of a row of scales.
    scales_row: usize,
    /// Bytes of a superblock's, where a group divides it.
    step: usize,
    form: ScaledForm,
    /// Of every superblock, where groups and superblocks divide each other.
    spread: Spread,
    divide: bool,
    kind: PhantomData<(C, K)>,
}

/// See [`Apart`].
#[derive(Clone, Copy)]
pub(crate) struct ApartRow {
    codes: *const u8,
    /// Bytes from the first scale, and from the first bias.
    scales: usize,
}

/// The groups of the `some` elements from `first` on; lanes past the last take its scale.
#[inline(always)]
fn spread(form: ScaledForm, first: usize, some: usize) -> Spread {
    let (begin, last) = (first / form.group(), (first + some - 1) / form.group());
    let mut index = [0; 16];
    for (lane, index) in index.iter_mut().enumerate() {
        *index = (((first + 16 * group(lane)) / form.group()).min(last) - begin) as u32;
    }
    Spread { index, count: last - begin + 1 }
}

impl<C: Codes, K: Known> Apart<C, K> {
    /// Those of a weight with such codes and scales.
    pub(crate) fn new(w: &Weight, s: &Scales) -> Self {
        debug_assert!(K::fits(s));
        let group = s.form.group();
        let size = s.dtype.size();
        Apart {
            codes: w.ptr,
            row: w.stride * w.dtype.size(),
            scales: s.first,
            biases: s.biases.unwrap_or(std::ptr::null()),
            dtype: s.dtype,
            scales_row: s.stride * size,
            step: SUPER / group * size,
            form: s.form,
            spread: spread(s.form, 0, SUPER),
            divide: SUPER.is_multiple_of(group) || group.is_multiple_of(SUPER),
            kind: PhantomData,
        }
    }

    /// Unpacks a superblock whose codes are at `codes`, and whose scales are spread so.
    ///
    /// # Safety
    /// `32 BITS` bytes of codes are readable, and the scales from byte `at` on.
    #[inline(always)]
    unsafe fn with<B: Bytes>(&self, b: B, codes: *const u8, at: usize, spread: &Spread) -> Unpacked<B> {
        let (dtype, biased) = K::KNOWN.unwrap_or((self.dtype, !self.biases.is_null()));
        // SAFETY: the caller's promise.
        unsafe {
            let scale = b.scales(self.scales.wrapping_add(at), dtype, spread, C::FACTOR);
            let min = if biased { b.scales(self.biases.wrapping_add(at), dtype, spread, 1.0) } else { b.splat(0.0) };
            Unpacked { q: C::unpack(b, codes), scale, min }
        }
    }

    /// Bytes from a row's first scale to that of superblock `i`.
    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        if K::KNOWN.is_some() { i * self.step } else { i * SUPER / self.form.group() * self.dtype.size() }
    }
}

impl<C: Codes, K: Known> Packed for Apart<C, K> {
    type Row = ApartRow;
    const VALUES: Values = C::VALUES;
    const MINS: bool = match K::KNOWN {
        Some((_, biases)) => biases,
        None => true,
    };

    #[inline(always)]
    fn row(&self, r: usize) -> ApartRow {
        let shared = self.form.rows();
        let above = if shared == 1 { r } else { r / shared };
        ApartRow { codes: self.codes.wrapping_add(r * self.row), scales: above * self.scales_row }
    }

    #[inline(always)]
    unsafe fn unpack<B: Bytes>(&self, b: B, row: ApartRow, i: usize) -> Unpacked<B> {
        let (codes, at) = (row.codes.wrapping_add(i * (SUPER / 8 * C::BITS)), row.scales + self.at(i));
        // SAFETY: the caller's promise.
        unsafe {
            if K::KNOWN.is_some() || self.divide {
                self.with(b, codes, at, &self.spread)
            } else {
                self.with(b, codes, at, &spread(self.form, i * SUPER, SUPER))
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack_some<B: Bytes>(&self, b: B, row: ApartRow, i: usize, some: usize) -> Unpacked<B> {
        let from = row.codes.wrapping_add(i * (SUPER / 8 * C::BITS));
        let mut codes = [0; LONGEST];
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from, codes.as_mut_ptr(), (some * C::BITS).div_ceil(8));
            self.with(b, codes.as_ptr(), row.scales + self.at(i), &spread(self.form, i * SUPER, some))
        }
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, row: ApartRow, i: usize, ahead: usize) {
        for line in (0..SUPER / 8 * C::BITS).step_by(64) {
            s.prefetch(row.codes.wrapping_add(i * (SUPER / 8 * C::BITS) + ahead + line));
        }
        // A line of scales is used up so slowly that nothing but this fetches the next one in time: 6-bit groups of 64
        // reached 72 % of reading without it.
        let at = row.scales + self.at(i) + SCALES_AHEAD;
        s.prefetch(self.scales.wrapping_add(at));
        if K::KNOWN.is_some_and(|(_, biased)| biased) {
            s.prefetch(self.biases.wrapping_add(at));
        }
    }
}
