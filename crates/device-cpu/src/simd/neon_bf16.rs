//! NEON with products of pairs of bf16, `bfdot`: twice as many numbers an instruction as in f32.
//!
//! The instructions are written as text: what stands for them in `std::arch` is not stable. They round to nearest,
//! ties to even, when they narrow; sums of pairs are rounded as the CPU does it, which is not the same on all.

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::Neon;
use super::stored::Stored;
use super::tile::{Product, tiles};
use super::unit::{Unit, UnitTask};
use super::{KEYS, Simd, TileArgs};

/// Proof that the CPU has NEON with BF16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeonBf16(Neon);

impl NeonBf16 {
    /// The proof, where there is one.
    pub(crate) fn new() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("bf16").then(Neon::new)?.map(NeonBf16)
    }

    /// The vectors.
    pub(crate) fn vectors(self) -> Neon {
        self.0
    }

    /// Runs a loop compiled for these instructions.
    pub(crate) fn run(self, task: impl UnitTask) {
        #[target_feature(enable = "neon,bf16")]
        fn inner(task: impl UnitTask, u: NeonBf16) {
            task.run(u);
        }
        // SAFETY: `self` exists only where `new` found the instructions.
        unsafe { inner(task, self) }
    }

    /// `low`, then `high`, as bf16.
    #[inline(always)]
    fn narrow(self, low: float32x4_t, high: float32x4_t) -> uint16x8_t {
        let out: uint16x8_t;
        // SAFETY: the token; registers only.
        unsafe {
            asm!("bfcvtn {0:v}.4h, {1:v}.4s", "bfcvtn2 {0:v}.8h, {2:v}.4s",
                out(vreg) out, in(vreg) low, in(vreg) high,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }
}

impl Product<Neon> for NeonBf16 {
    #[inline(always)]
    fn accumulate(self, x: float32x4_t, w: float32x4_t, c: float32x4_t) -> float32x4_t {
        let mut out = c;
        // SAFETY: the token; registers only.
        unsafe {
            asm!("bfdot {0:v}.4s, {1:v}.8h, {2:v}.8h", inout(vreg) out, in(vreg) w, in(vreg) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }
}

/// Bits as they lie in the words of a tile.
#[inline(always)]
fn as_words(halves: uint16x8_t) -> float32x4_t {
    // SAFETY: both types are sixteen plain bytes.
    unsafe { std::mem::transmute(halves) }
}

impl Unit for NeonBf16 {
    type S = Neon;
    const PER_WORD: usize = 2;
    const K_BLOCK: usize = 256;

    #[inline(always)]
    fn simd(self) -> Neon {
        self.0
    }

    #[inline(always)]
    unsafe fn words<T: Stored>(self, p: *const u8, n: usize) -> float32x4_t {
        let s = self.0;
        // SAFETY: the caller's promise; vectors cut short load what is left.
        unsafe {
            if T::IS_BF16 {
                let mut some = [0u16; 8];
                let from = if n >= 8 {
                    p
                } else {
                    std::ptr::copy_nonoverlapping(p, some.as_mut_ptr().cast(), 2 * n);
                    some.as_ptr().cast()
                };
                return s.load(from.cast());
            }
            let next = p.wrapping_add(4 * T::SIZE);
            let (low, high) = match n {
                8.. => (T::load(s, p), T::load(s, next)),
                4.. => (T::load(s, p), T::load_some(s, next, n - 4)),
                _ => (T::load_some(s, p, n), s.splat(0.0)),
            };
            as_words(self.narrow(low, high))
        }
    }

    #[inline(always)]
    fn pair(self, even: float32x4_t, odd: float32x4_t) -> float32x4_t {
        let both = self.narrow(even, odd);
        // SAFETY: the token.
        as_words(unsafe { vzip1q_u16(both, vextq_u16::<4>(both, both)) })
    }

    #[inline(always)]
    fn join(self, first: float32x4_t, second: float32x4_t) -> float32x4_t {
        as_words(self.narrow(first, second))
    }

    #[inline(always)]
    fn accumulate(self, x: float32x4_t, w: float32x4_t, c: float32x4_t) -> float32x4_t {
        Product::accumulate(self, x, w, c)
    }

    #[inline(always)]
    unsafe fn tile_packed(self, a: TileArgs) {
        tiles!(self.0, self, a, 2, 1, Neon::LEFT, [2 4 8 12]);
    }

    #[inline(always)]
    unsafe fn tile_rows(self, a: TileArgs) {
        tiles!(self.0, self, a, 2, KEYS / 2, 1, [2 4 8 12]);
    }
}
