//! AVX512-BF16: products of pairs of bf16 on the vectors, `vdpbf16ps`.
//!
//! On AMD's cores it multiplies twice as many numbers a cycle as f32 does, on Intel's half as many.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::powers::key_at;
use super::stored::Stored;
use super::tile::{Product, tiles};
use super::unit::{Unit, UnitTask, WeighPanel};
use super::{KEYS, Simd, TileArgs};

/// Proof that the CPU has AVX-512 with BF16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(Avx512);

/// An intrinsic without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: an `Avx512Bf16` exists only where `Avx512Bf16::new` found the instructions.
        unsafe { $e }
    };
}

impl Avx512Bf16 {
    /// The proof, where there is one.
    pub(crate) fn new() -> Option<Self> {
        // VBMI too, which all but the first CPUs with BF16 have.
        let found = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi");
        found.then(Avx512::new)?.map(Avx512Bf16)
    }

    /// Whether its products are as fast as its additions, which is a matter of the maker.
    pub(crate) fn is_fast() -> bool {
        let vendor = __cpuid(0);
        // "AuthenticAMD"
        (vendor.ebx, vendor.edx, vendor.ecx) == (0x6874_7541, 0x6974_6e65, 0x444d_4163)
    }

    /// The vectors.
    pub(crate) fn vectors(self) -> Avx512 {
        self.0
    }

    /// Runs a loop compiled for these instructions.
    pub(crate) fn run(self, task: impl UnitTask) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma,f16c")]
        fn inner(task: impl UnitTask, u: Avx512Bf16) {
            task.run(u);
        }
        // SAFETY: `self` exists only where `new` found the instructions.
        unsafe { inner(task, self) }
    }

    /// `low`, then `high`, as bf16.
    #[inline(always)]
    fn narrow(self, low: __m512, high: __m512) -> __m512i {
        // SAFETY: the token; both types are 64 plain bytes.
        unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) }
    }

    /// [`Unit::words`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn words<T: Stored>(self, p: *const u8, n: usize) -> __m512 {
        let s = self.0;
        // SAFETY: the caller's promise; vectors cut short load what is left.
        unsafe {
            if T::IS_BF16 {
                return _mm512_castsi512_ps(match n {
                    32.. => _mm512_loadu_epi16(p.cast()),
                    _ => _mm512_maskz_loadu_epi16((1 << n) - 1, p.cast()),
                });
            }
            let next = p.wrapping_add(16 * T::SIZE);
            let (low, high) = match n {
                32.. => (T::load(s, p), T::load(s, next)),
                16.. => (T::load(s, p), T::load_some(s, next, n - 16)),
                _ => (T::load_some(s, p, n), s.splat(0.0)),
            };
            _mm512_castsi512_ps(self.narrow(low, high))
        }
    }

    /// [`Unit::pair`].
    #[inline(always)]
    pub(crate) fn pair(self, even: __m512, odd: __m512) -> __m512 {
        // Word i takes half-words i and 16 + i.
        const ORDER: [u16; 32] = {
            let mut order = [0; 32];
            let mut i = 0;
            while i < 16 {
                (order[2 * i], order[2 * i + 1]) = (i as u16, 16 + i as u16);
                i += 1;
            }
            order
        };
        op!({
            let order = _mm512_loadu_epi16(ORDER.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, self.narrow(even, odd)))
        })
    }

    /// [`Unit::join`].
    #[inline(always)]
    pub(crate) fn join(self, first: __m512, second: __m512) -> __m512 {
        // Four of the first, four of the second, and so on.
        op!({
            let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
            _mm512_castsi512_ps(_mm512_permutexvar_epi64(order, self.narrow(first, second)))
        })
    }

    /// `2^t` as `2^floor(t)` times a cubic in the rest, off by less than 8e-5 of the value.
    #[inline(always)]
    pub(crate) fn exp2(self, t: __m512) -> __m512 {
        let s = self.0;
        // The rest of rounding down; of an infinity it is 0.
        let f = op!(_mm512_reduce_ps::<1>(t));
        let mut p = s.splat(0.078_024_566);
        for c in [0.226_067_1, 0.695_833_55, 0.999_925_2] {
            p = s.fma(p, f, s.splat(c));
        }
        // It rounds the exponent down itself.
        op!(_mm512_scalef_ps(p, t))
    }
}

impl Product<Avx512> for Avx512Bf16 {
    #[inline(always)]
    fn accumulate(self, x: __m512, w: __m512, c: __m512) -> __m512 {
        // SAFETY: the token; the types are 64 plain bytes.
        op!(_mm512_dpbf16_ps(c, std::mem::transmute::<__m512, __m512bh>(x), std::mem::transmute::<__m512, __m512bh>(w)))
    }
}

impl Unit for Avx512Bf16 {
    type S = Avx512;
    const PER_WORD: usize = 2;
    const K_BLOCK: usize = 256;
    const EXP_SCALE: f32 = std::f32::consts::LOG2_E;
    const SLACK: f32 = 32.0;
    const WEIGHS: bool = true;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.0
    }

    #[inline(always)]
    unsafe fn words<T: Stored>(self, p: *const u8, n: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { Avx512Bf16::words::<T>(self, p, n) }
    }

    #[inline(always)]
    fn pair(self, even: __m512, odd: __m512) -> __m512 {
        Avx512Bf16::pair(self, even, odd)
    }

    #[inline(always)]
    fn join(self, first: __m512, second: __m512) -> __m512 {
        Avx512Bf16::join(self, first, second)
    }

    #[inline(always)]
    fn exp(self, x: __m512) -> __m512 {
        self.exp2(x)
    }

    #[inline(always)]
    fn key_at(i: usize) -> usize {
        i / 32 * 32 + key_at(i % 32)
    }

    #[inline(always)]
    unsafe fn weigh_panel(self, a: WeighPanel<'_>) -> bool {
        // SAFETY: the caller's promise.
        unsafe { Avx512Bf16::weigh_panel(self, a) }
    }

    #[inline(always)]
    fn accumulate(self, x: __m512, w: __m512, c: __m512) -> __m512 {
        Product::accumulate(self, x, w, c)
    }

    #[inline(always)]
    unsafe fn tile_packed(self, a: TileArgs) {
        tiles!(self.0, self, a, 2, 1, Avx512::LEFT, [2 4 8 14]);
    }

    #[inline(always)]
    unsafe fn tile_rows(self, a: TileArgs) {
        tiles!(self.0, self, a, 2, KEYS / 2, 1, [2 4 8 14]);
    }
}
