//! Vectors of f32, one implementation an instruction set, and the loops written over them.
//!
//! A value of a [`Simd`] type exists only where the CPU has its instructions, so holding one is the proof that
//! its methods rest on. Loops are structs that implement [`Task`]; [`Kernels::run`](crate::isa::Kernels::run)
//! compiles each once an instruction set. Everything below a `Task::run` is `#[inline(always)]`: a loop that is
//! not inlined there is compiled without the instructions, right but many times slower. That includes the body
//! of a closure unless it is small: a closure that does arithmetic on vectors is best written as a function.

use turbospark_tensor::e4m3_to_f32;

pub(crate) mod blocks;
pub(crate) mod bytes;
pub(crate) mod math;
pub(crate) mod portable;
pub(crate) mod scaled;
pub(crate) mod stored;
pub(crate) mod tile;
pub(crate) mod unit;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_bf16;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_bf16;
#[cfg(target_arch = "x86_64")]
pub(crate) mod powers;

/// Keys in one step of a decoded row's attention, and rows of a DeltaNet chunk.
pub(crate) const BLOCK: usize = 64;

/// Keys in one step of a prompt's attention.
pub(crate) const KEYS: usize = 256;

/// What one call of a tile kernel multiplies: `c[i][j] (+)= sum over p < k of x[i][p] * w[p][j]`.
///
/// Both sides hold words of 32 bits: one f32, or what a [`Unit`](unit::Unit) says.
#[derive(Clone, Copy)]
pub(crate) struct TileArgs {
    /// Rows, 1 to the tile's height.
    pub rows: usize,
    /// Length of the sum in words.
    pub k: usize,
    /// The left side; its layout is the kernel's.
    pub x: *const f32,
    /// `[k, columns of the tile]`, `ldw` words from row to row.
    pub w: *const f32,
    /// See `w`.
    pub ldw: usize,
    /// `[rows, columns of the tile]`, `ldc` elements from row to row.
    pub c: *mut f32,
    /// See `c`.
    pub ldc: usize,
    /// Add to `c` instead of replacing it.
    pub add: bool,
}

/// A vector of `LANES` f32 and what the kernels need of it.
///
/// `max` and `min` give their second operand where either is NaN, as the x86 instructions do.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// The vector.
    type V: Copy;
    /// Elements in it.
    const LANES: usize;
    /// Rows of the largest register tile.
    const TILE_ROWS: usize;
    /// Columns of every register tile; divides [`BLOCK`].
    const TILE_COLS: usize;
    /// Elements from one step of a packed left side to the next: `TILE_ROWS` in whole vectors.
    const LEFT: usize = Self::TILE_ROWS.next_multiple_of(Self::LANES);

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b` within two units in the last place, for finite `b` that aren't denormal; zero where `1 / b` is.
    #[inline(always)]
    fn quotient(self, a: Self::V, b: Self::V) -> Self::V {
        self.div(a, b)
    }
    /// `a * b + c`, fused where the instruction set fuses.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where `a < b`, else `no`.
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `v * 2^n` for whole `n` in -126..=127.
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V;
    /// The sum of the lanes, always in the same order.
    fn sum(self, v: Self::V) -> f32;
    /// The largest lane.
    fn largest(self, v: Self::V) -> f32;
    /// Whether any lane is above `limit`.
    fn any_above(self, v: Self::V, limit: f32) -> bool {
        self.largest(v) > limit
    }

    /// Loads `LANES` elements.
    ///
    /// # Safety
    /// They are readable. No alignment is asked for.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Loads the first `n <= LANES` elements; the other lanes are zero.
    ///
    /// # Safety
    /// As [`Simd::load`], for `n` elements.
    unsafe fn load_some(self, p: *const f32, n: usize) -> Self::V;
    /// Loads and widens bf16.
    ///
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;
    /// Loads and widens f16.
    ///
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// Loads E4M3 and widens it, divided by 256.
    ///
    /// # Safety
    /// As [`Simd::load`].
    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> Self::V {
        let mut wide = [0f32; 16];
        for (i, w) in wide.iter_mut().enumerate().take(Self::LANES) {
            // SAFETY: the caller's promise.
            *w = e4m3_to_f32(unsafe { *p.add(i) }) * (1.0 / 256.0);
        }
        // SAFETY: no vector has more than 16 lanes.
        unsafe { self.load(wide.as_ptr()) }
    }
    /// Stores `LANES` elements.
    ///
    /// # Safety
    /// They are writable. No alignment is asked for.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Stores the first `n <= LANES` elements.
    ///
    /// # Safety
    /// As [`Simd::store`], for `n` elements.
    unsafe fn store_some(self, p: *mut f32, v: Self::V, n: usize);
    /// Stores `LANES` elements past the caches where it can: a line that is written whole need not be read first.
    /// [`Simd::streamed`] is to follow before another thread reads them.
    ///
    /// # Safety
    /// As [`Simd::store`], and `p` is aligned to the vector.
    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { self.store(p, v) }
    }
    /// Lets other threads see what was streamed.
    #[inline(always)]
    fn streamed(self) {}
    /// Stores `LANES` vectors as columns: lane `l` of `rows[r]` goes to `out[l * ld + r]`.
    ///
    /// # Safety
    /// `rows` has `LANES` vectors; `LANES` rows of `LANES` elements are writable at `out`.
    unsafe fn store_transposed(self, rows: &[Self::V], out: *mut f32, ld: usize);

    /// Asks for the cache line at `p`, which may be any address.
    fn prefetch(self, p: *const u8);

    /// The tile kernel with `x` packed `[k, LEFT]`.
    ///
    /// # Safety
    /// The three matrices of `a` are readable, `c` is writable and overlaps neither. `x` and `c` have room for
    /// `TILE_ROWS` rows; those of `c` past `rows` become anything.
    unsafe fn tile_packed(self, a: TileArgs);
    /// The tile kernel with `x` in rows that are `STRIDE` elements apart.
    ///
    /// # Safety
    /// As [`Simd::tile_packed`].
    unsafe fn tile_rows<const STRIDE: usize>(self, a: TileArgs);
}

/// A loop that is compiled once an instruction set.
pub(crate) trait Task {
    /// Runs it. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S);
}
