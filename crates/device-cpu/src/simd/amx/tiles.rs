//! The tile registers, and products of tiles on them.

use std::arch::asm;

/// Words of a row of a tile, and rows of a tile.
pub(super) const SIDE: usize = 16;

/// Steps of a left side that the registers hold, beside two right tiles and two sums: heads of 64 elements.
pub(super) const HELD: usize = 2;

/// Operands of a product of tiles; strides are in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    /// Left tiles: the next, from row to row, from step to step. The second lies 16 rows after the first.
    pub(super) x: (*const f32, usize, usize),
    /// Right tiles, as `x`; the second lies 16 words after the first.
    pub(super) w: (*const f32, usize, usize),
    /// Sums and from row to row; columns as `w`, rows as `x`.
    pub(super) c: (*mut f32, usize),
    /// Whether there are two left tiles, or one.
    pub(super) high: bool,
    /// Whether the right tiles of all steps lie one after the other, past the first cache.
    pub(super) streams: bool,
}

impl Product {
    pub(super) fn lower(&self) -> (*const f32, *mut f32) {
        (self.x.0.wrapping_byte_add(SIDE * self.x.1), self.c.0.wrapping_byte_add(SIDE * self.c.1))
    }

    pub(super) fn step(&mut self) {
        self.x.0 = self.x.0.wrapping_byte_add(self.x.2);
        self.w.0 = self.w.0.wrapping_byte_add(self.w.2);
    }

    /// On to the second right tile.
    pub(super) fn right(&mut self) {
        (self.w.0, self.c.0) = (self.w.0.wrapping_add(SIDE), self.c.0.wrapping_add(SIDE));
    }
}

/// The tile registers. A product is begun, run over its steps, and stored.
pub(crate) trait Tiles: Copy + Send + Sync + 'static {
    /// Sets all tiles to 16 rows of 64 bytes.
    fn begin(self);
    /// Empties them, so that they need not be saved.
    fn end(self);
    /// Zero sums, or with `add` those in memory.
    ///
    /// # Safety
    /// Between `begin` and `end` on this thread; all tiles are readable, those of `c` writable.
    unsafe fn sums(self, p: &Product, add: bool);
    /// Multiplies the next `steps`, at least one, and moves on.
    ///
    /// # Safety
    /// As [`Tiles::sums`], which came before with the same product.
    unsafe fn steps(self, p: &mut Product, steps: usize);
    /// Multiplies the upper left tile of the next step.
    ///
    /// # Safety
    /// As [`Tiles::steps`].
    unsafe fn upper(self, p: &Product);
    /// Multiplies the lower one, where there are two, by what [`Tiles::upper`] loaded.
    ///
    /// # Safety
    /// As [`Tiles::steps`], right after [`Tiles::upper`].
    unsafe fn lower(self, p: &Product);
    /// Stores the sums.
    ///
    /// # Safety
    /// As [`Tiles::steps`].
    unsafe fn store(self, p: &Product);
    /// Loads both left tiles of [`HELD`] steps, to be multiplied by many right sides.
    ///
    /// # Safety
    /// As [`Tiles::sums`].
    unsafe fn hold(self, p: &Product);
    /// Multiplies them by the first right tile of the first step; the sums of 16 columns are zero before.
    ///
    /// # Safety
    /// As [`Tiles::sums`], after [`Tiles::hold`] and no product of another kind since.
    unsafe fn first_held(self, p: &Product);
    /// The same of the second step, added.
    ///
    /// # Safety
    /// As [`Tiles::first_held`], which came before.
    unsafe fn second_held(self, p: &Product);
    /// Stores these sums.
    ///
    /// # Safety
    /// As [`Tiles::second_held`].
    unsafe fn store_held(self, p: &Product);
}

/// The CPU's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardware(pub(super) ());

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
pub(crate) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_a_row: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles as large as they can be.
pub(crate) static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_a_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Tiles for Hardware {
    #[inline(always)]
    fn begin(self) {
        // SAFETY: the token; the configuration is valid and 64 bytes long.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags)) }
    }

    #[inline(always)]
    fn end(self) {
        // SAFETY: the token.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn sums(self, p: &Product, add: bool) {
        let (_, d) = p.lower();
        // SAFETY: the token, and the caller's promise.
        unsafe {
            if !add {
                return asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nostack, nomem, preserves_flags),
                );
            }
            asm!(
                "tileloadd tmm0, [{c} + {ldc}]",
                "tileloadd tmm1, [{c} + {ldc} + 64]",
                c = in(reg) p.c.0, ldc = in(reg) p.c.1,
                options(nostack, readonly, preserves_flags),
            );
            if p.high {
                asm!(
                    "tileloadd tmm2, [{d} + {ldc}]",
                    "tileloadd tmm3, [{d} + {ldc} + 64]",
                    d = in(reg) d, ldc = in(reg) p.c.1,
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn steps(self, p: &mut Product, steps: usize) {
        // The right tiles of two steps on, a quarter at a time.
        macro_rules! fetch {
            (@ $($at:literal)*) => { concat!($("prefetcht0 [{w} + ", $at, "]\n",)*) };
            (0) => { fetch!(@ 4096 4160 4224 4288 4352 4416 4480 4544) };
            (1) => { fetch!(@ 4608 4672 4736 4800 4864 4928 4992 5056) };
            (2) => { fetch!(@ 5120 5184 5248 5312 5376 5440 5504 5568) };
            (3) => { fetch!(@ 5632 5696 5760 5824 5888 5952 6016 6080) };
        }
        macro_rules! high {
            ($fetch0:expr, $fetch1:expr, $fetch2:expr, $fetch3:expr) => {
                asm!(
                    "2:",
                    "tileloadd tmm4, [{x} + {ldx}]",
                    "tileloadd tmm6, [{w} + {ldw}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    $fetch0,
                    "tileloadd tmm7, [{w} + {ldw} + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    $fetch1,
                    "tileloadd tmm5, [{y} + {ldx}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    $fetch2,
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    $fetch3,
                    "add {x}, {x_step}",
                    "add {y}, {x_step}",
                    "add {w}, {w_step}",
                    "dec {steps}",
                    "jnz 2b",
                    x = inout(reg) p.x.0, y = inout(reg) p.lower().0 => _, ldx = in(reg) p.x.1, x_step = in(reg) p.x.2,
                    w = inout(reg) p.w.0, ldw = in(reg) p.w.1, w_step = in(reg) p.w.2,
                    steps = inout(reg) steps => _,
                    options(nostack, readonly),
                )
            };
        }
        // SAFETY: the token, and the caller's promise; a line that is asked for need not exist.
        unsafe {
            if p.high && p.streams {
                high!(fetch!(0), fetch!(1), fetch!(2), fetch!(3));
            } else if p.high {
                high!("", "", "", "");
            } else {
                for _ in 0..steps {
                    self.upper(p);
                    p.step();
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn upper(self, p: &Product) {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm4, [{x} + {ldx}]",
                "tileloadd tmm6, [{w} + {ldw}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {ldw} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                x = in(reg) p.x.0, ldx = in(reg) p.x.1, w = in(reg) p.w.0, ldw = in(reg) p.w.1,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn lower(self, p: &Product) {
        if !p.high {
            return;
        }
        // SAFETY: the token, and the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm5, [{y} + {ldx}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                y = in(reg) p.lower().0, ldx = in(reg) p.x.1,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: &Product) {
        let (_, d) = p.lower();
        // SAFETY: the token, and the caller's promise.
        unsafe {
            asm!(
                "tilestored [{c} + {ldc}], tmm0",
                "tilestored [{c} + {ldc} + 64], tmm1",
                c = in(reg) p.c.0, ldc = in(reg) p.c.1,
                options(nostack, preserves_flags),
            );
            if p.high {
                asm!(
                    "tilestored [{d} + {ldc}], tmm2",
                    "tilestored [{d} + {ldc} + 64], tmm3",
                    d = in(reg) d, ldc = in(reg) p.c.1,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn hold(self, p: &Product) {
        let mut second = *p;
        second.step();
        // SAFETY: the token, and the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm4, [{x} + {ldx}]",
                "tileloadd tmm5, [{y} + {ldx}]",
                x = in(reg) p.x.0, y = in(reg) p.lower().0, ldx = in(reg) p.x.1,
                options(nostack, readonly, preserves_flags),
            );
            asm!(
                "tileloadd tmm6, [{x} + {ldx}]",
                "tileloadd tmm7, [{y} + {ldx}]",
                x = in(reg) second.x.0, y = in(reg) second.lower().0, ldx = in(reg) p.x.1,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn first_held(self, p: &Product) {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tileloadd tmm2, [{w} + {ldw}]",
                "tdpbf16ps tmm0, tmm4, tmm2",
                "tdpbf16ps tmm1, tmm5, tmm2",
                w = in(reg) p.w.0, ldw = in(reg) p.w.1,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn second_held(self, p: &Product) {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm3, [{w} + {ldw}]",
                "tdpbf16ps tmm0, tmm6, tmm3",
                "tdpbf16ps tmm1, tmm7, tmm3",
                w = in(reg) p.w.0.wrapping_byte_add(p.w.2), ldw = in(reg) p.w.1,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn store_held(self, p: &Product) {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            asm!(
                "tilestored [{c} + {ldc}], tmm0",
                "tilestored [{d} + {ldc}], tmm1",
                c = in(reg) p.c.0, d = in(reg) p.lower().1, ldc = in(reg) p.c.1,
                options(nostack, preserves_flags),
            );
        }
    }
}
