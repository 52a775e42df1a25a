//! AMX: products of tiles of bf16, 16 rows by 32 elements by 16 columns an instruction.
//!
//! A call multiplies one or two row tiles by two column tiles. The four sums stay in tile registers over all of
//! its steps, so a step loads four tiles for four products; the left ones come from the first cache and the
//! right ones from the second. Tile registers are named in assembly only, so the compiler never sees them.
//!
//! Tiles are multiplied while the vectors do something else, as far ahead as the CPU looks, which is a few hundred
//! instructions. So [`Beside`] work comes in small pieces, one after each pair of products.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::avx512::Avx512;
use super::avx512_bf16::Avx512Bf16;
use super::powers::key_at;
use super::stored::{F32, Stored};
use super::unit::{Beside, Nothing, Unit, UnitTask, WeighPanel};
use super::{KEYS, Simd, TileArgs};

/// Proof that the CPU has AMX with bf16 and that the system lets this process use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx<T> {
    vectors: Avx512Bf16,
    tiles: T,
}

/// Words of a row of a tile, and rows of a tile.
const SIDE: usize = 16;

/// Words of each row that are packed at a time.
const PIECE: usize = 8 * SIDE;

/// Steps of a head's scores: keys and values are met by several row tiles, and come from the first cache.
const FEW: usize = 4;

/// Operands of a product of tiles; strides are in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    /// Left tiles: the next, from row to row, from step to step. The second lies 16 rows after the first.
    x: (*const f32, usize, usize),
    /// Right tiles, as `x`; the second lies 16 words after the first.
    w: (*const f32, usize, usize),
    /// Sums and from row to row; columns as `w`, rows as `x`.
    c: (*mut f32, usize),
    /// Whether there are two left tiles, or one.
    high: bool,
    /// Whether the right tiles of all steps lie one after the other, past the first cache.
    streams: bool,
}

impl Product {
    fn lower(&self) -> (*const f32, *mut f32) {
        (self.x.0.wrapping_byte_add(SIDE * self.x.1), self.c.0.wrapping_byte_add(SIDE * self.c.1))
    }

    fn step(&mut self) {
        self.x.0 = self.x.0.wrapping_byte_add(self.x.2);
        self.w.0 = self.w.0.wrapping_byte_add(self.w.2);
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
}

/// The CPU's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardware(());

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

#[cfg(test)]
pub(crate) mod software {
    //! The tile registers in plain loops, for CPUs without them.

    use half::bf16;

    use super::*;

    /// Stands for the registers; needs the vectors only.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Software;

    impl Amx<Software> {
        /// On any CPU with AVX512-BF16.
        pub(crate) fn software() -> Option<Self> {
            Avx512Bf16::new().map(|vectors| Amx { vectors, tiles: Software })
        }
    }

    /// Both halves of a word.
    unsafe fn halves(p: *const f32) -> [f32; 2] {
        // SAFETY: the caller's promise.
        let word = unsafe { p.cast::<u32>().read_unaligned() };
        [word as u16, (word >> 16) as u16].map(|h| bf16::from_bits(h).to_f32())
    }

    impl Software {
        /// Multiplies rows `rows` of the left side by the next step.
        unsafe fn product(p: &Product, rows: std::ops::Range<usize>) {
            for (i, j) in rows.flat_map(|i| (0..2 * SIDE).map(move |j| (i, j))) {
                // SAFETY: the caller's promise.
                unsafe {
                    let c = p.c.0.byte_add(i * p.c.1).add(j);
                    for word in 0..SIDE {
                        let x = halves(p.x.0.byte_add(i * p.x.1).add(word));
                        let w = halves(p.w.0.byte_add(word * p.w.1).add(j));
                        *c += x[0] * w[0];
                        *c += x[1] * w[1];
                    }
                }
            }
        }
    }

    impl Tiles for Software {
        fn begin(self) {}
        fn end(self) {}

        unsafe fn sums(self, p: &Product, add: bool) {
            for i in 0..if add { 0 } else { SIDE << p.high as usize } {
                // SAFETY: the caller's promise.
                unsafe { std::slice::from_raw_parts_mut(p.c.0.byte_add(i * p.c.1), 2 * SIDE).fill(0.0) };
            }
        }

        unsafe fn steps(self, p: &mut Product, steps: usize) {
            for _ in 0..steps {
                // SAFETY: the caller's promise.
                unsafe {
                    self.upper(p);
                    self.lower(p);
                }
                p.step();
            }
        }

        unsafe fn upper(self, p: &Product) {
            // SAFETY: the caller's promise.
            unsafe { Self::product(p, 0..SIDE) }
        }

        unsafe fn lower(self, p: &Product) {
            // SAFETY: the caller's promise.
            unsafe { Self::product(p, if p.high { SIDE..2 * SIDE } else { 0..0 }) }
        }

        unsafe fn store(self, _: &Product) {}
    }
}
