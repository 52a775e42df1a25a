//! AMX: products of tiles of bf16, 16 rows by 32 elements by 16 columns an instruction.
//!
//! A call multiplies one or two row tiles by two column tiles. The four sums stay in tile registers over all of
//! its steps, so a step loads four tiles for four products; the left ones come from the first cache and the
//! right ones from the second. Tile registers are named in assembly only, so the compiler never sees them.
//!
//! Tiles are multiplied while the vectors do something else, as far ahead as the CPU looks, which is a few hundred
//! instructions. So [`Beside`] work comes in small pieces, one after each pair of products.

mod tiles;

#[cfg(test)]
pub(crate) mod software;

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::avx512::Avx512;
use super::avx512_bf16::Avx512Bf16;
use super::powers::key_at;
use super::stored::{F32, Stored};
use super::unit::{Beside, Nothing, Unit, UnitTask, WeighPanel};
use super::{KEYS, Simd, TileArgs};
pub(crate) use tiles::{CONFIG, Hardware};
use tiles::{HELD, Product, SIDE, Tiles};

/// Proof that the CPU has AMX with bf16 and that the system lets this process use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx<T> {
    vectors: Avx512Bf16,
    tiles: T,
}

/// Words of each row that are packed at a time.
const PIECE: usize = 8 * SIDE;

/// Steps of a head's scores: keys and values are met by several row tiles, and come from the first cache.
const FEW: usize = 4;

impl Amx<Hardware> {
    /// The proof, where there is one.
    pub(crate) fn new() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let found = *FOUND.get_or_init(|| has_tiles() && granted());
        found.then(Avx512Bf16::new)?.map(|vectors| Amx { vectors, tiles: Hardware(()) })
    }
}

impl<T: Tiles> Amx<T> {
    /// The vectors.
    pub(crate) fn vectors(self) -> Avx512 {
        self.vectors.vectors()
    }

    /// Runs a loop compiled for these instructions.
    pub(crate) fn run(self, task: impl UnitTask) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma,f16c")]
        fn inner<T: Tiles>(task: impl UnitTask, u: Amx<T>) {
            task.run(u);
        }
        // SAFETY: `self` exists only where the instructions were found.
        unsafe { inner(task, self) }
    }
}

/// Whether the CPU has AMX-TILE and AMX-BF16, and the system saves their registers.
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILE_AND_BF16: u32 = 1 << 24 | 1 << 22;
    const TILE_STATE: u64 = 0b11 << 17;
    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: called where the system uses `xsave`.
        unsafe { _xgetbv(0) }
    }
    __cpuid(0).eax >= 7
        && __cpuid_count(7, 0).edx & TILE_AND_BF16 == TILE_AND_BF16
        && __cpuid(1).ecx & OSXSAVE != 0
        // SAFETY: `OSXSAVE` says that the instruction may be used.
        && unsafe { saved() } & TILE_STATE == TILE_STATE
}

/// Whether a CPU with [`Amx`] multiplies bytes too.
pub(crate) fn has_int8() -> bool {
    __cpuid_count(7, 0).edx & 1 << 25 != 0
}

/// Asks Linux for the tile registers, which a process has only on request.
#[cfg(target_os = "linux")]
fn granted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XTILEDATA: usize = 18;
    let outcome: isize;
    // SAFETY: a system call that changes what this process may use, and no memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => outcome,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    outcome == 0
}

/// Elsewhere nobody has tried.
#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}

impl<T: Tiles> Amx<T> {
    /// One call of a tile kernel, and something beside it.
    ///
    /// # Safety
    /// As [`Unit::tile_packed`], with left tiles `ldx` and `step` bytes apart from row to row and step to step.
    #[inline(always)]
    unsafe fn multiply(self, a: TileArgs, ldx: usize, step: usize, streams: bool, beside: &mut impl Beside) {
        let mut product = Product {
            x: (a.x, ldx, step),
            w: (a.w, 4 * a.ldw, 4 * SIDE * a.ldw),
            c: (a.c, 4 * a.ldc),
            high: a.rows > SIDE,
            streams,
        };
        let mut left = a.k / SIDE;
        // SAFETY: the caller's promise.
        unsafe {
            self.tiles.sums(&product, a.add);
            while left > 0 && !beside.is_done() {
                self.tiles.upper(&product);
                beside.some();
                self.tiles.lower(&product);
                beside.some();
                product.step();
                left -= 1;
            }
            if left > 0 {
                self.tiles.steps(&mut product, left);
            }
            self.tiles.store(&product);
        }
    }
}

impl<T: Tiles> Amx<T> {
    /// A product whose left side is held.
    fn held(a: &TileArgs) -> Product {
        Product {
            x: (a.x, 4 * SIDE, 4 * SIDE * Self::ROWS),
            w: (a.w, 4 * a.ldw, 4 * SIDE * a.ldw),
            c: (a.c, 4 * a.ldc),
            high: true,
            streams: false,
        }
    }
}

impl<T: Tiles> Unit for Amx<T> {
    type S = Avx512;
    const PER_WORD: usize = 2;
    const ROWS: usize = 2 * SIDE;
    const COLS: usize = 2 * SIDE;
    const LEFT: usize = Self::ROWS;
    const STEP: usize = SIDE;
    const K_BLOCK: usize = 512;
    const PANELS: usize = 256 << 10;
    const WIDTH: usize = 8;
    const EXP_SCALE: f32 = std::f32::consts::LOG2_E;
    const SLACK: f32 = 32.0;
    const WEIGHS: bool = true;
    const BESIDE: bool = true;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.vectors.vectors()
    }

    #[inline(always)]
    fn begin(self) {
        self.tiles.begin();
    }

    #[inline(always)]
    fn end(self) {
        self.tiles.end();
    }

    #[inline(always)]
    unsafe fn words<E: Stored>(self, p: *const u8, n: usize) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { self.vectors.words::<E>(p, n) }
    }

    #[inline(always)]
    fn pair(self, even: __m512, odd: __m512) -> __m512 {
        self.vectors.pair(even, odd)
    }

    #[inline(always)]
    fn join(self, first: __m512, second: __m512) -> __m512 {
        self.vectors.join(first, second)
    }

    #[inline(always)]
    fn exp(self, x: __m512) -> __m512 {
        self.vectors.exp2(x)
    }

    #[inline(always)]
    fn key_at(i: usize) -> usize {
        i / 32 * 32 + key_at(i % 32)
    }

    #[inline(always)]
    unsafe fn weigh_panel(self, a: WeighPanel<'_>) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.vectors.weigh_panel(a) }
    }

    #[inline(always)]
    fn accumulate(self, x: __m512, w: __m512, c: __m512) -> __m512 {
        Unit::accumulate(self.vectors, x, w, c)
    }

    /// `[words / 16, ROWS, 16]`: a left tile is 1024 bytes in a row. Rows past `rows` are left as they are.
    #[inline(always)]
    unsafe fn pack_left(self, rows: usize, k: usize, words: usize, row: impl Fn(usize) -> *const f32, out: *mut f32) {
        let s = self.simd();
        // A few words of all rows at a time, so that what is written stays in the first cache.
        for first in (0..words).step_by(PIECE) {
            for i in 0..rows {
                let from = row(i);
                for p in (first..words.min(first + PIECE)).step_by(SIDE) {
                    let done = 2 * p;
                    // SAFETY: the caller's promise; `k - done` elements are left in the row.
                    unsafe {
                        let v = match k.saturating_sub(done) {
                            0 => s.splat(0.0),
                            some => self.words::<F32>(from.wrapping_add(done).cast(), some),
                        };
                        s.store(out.add(p * Self::ROWS + i * SIDE), v);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn tile_packed(self, a: TileArgs) {
        // SAFETY: the caller's promise.
        unsafe { self.tile_beside(a, &mut Nothing) }
    }

    #[inline(always)]
    unsafe fn hold(self, a: &TileArgs) -> bool {
        let fits = a.k == HELD * SIDE && a.rows > SIDE && !a.add;
        if fits {
            // SAFETY: the caller's promise.
            unsafe { self.tiles.hold(&Self::held(a)) };
        }
        fits
    }

    #[inline(always)]
    unsafe fn tile_held(self, a: TileArgs, work: &mut impl Beside) {
        let mut p = Self::held(&a);
        for _ in 0..2 {
            // SAFETY: the caller's promise.
            unsafe {
                self.tiles.first_held(&p);
                work.some();
                self.tiles.second_held(&p);
                work.some();
                self.tiles.store_held(&p);
            }
            p.right();
        }
    }

    #[inline(always)]
    unsafe fn tile_beside(self, a: TileArgs, work: &mut impl Beside) {
        // SAFETY: the caller's promise.
        unsafe { self.multiply(a, 4 * SIDE, 4 * SIDE * Self::ROWS, a.k > FEW * SIDE, work) }
    }

    #[inline(always)]
    unsafe fn tile_rows(self, a: TileArgs) {
        // SAFETY: the caller's promise.
        unsafe { self.multiply(a, 4 * (KEYS / 2), 4 * SIDE, false, &mut Nothing) }
    }
}
