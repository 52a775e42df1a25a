//! The tile registers in plain loops, for CPUs without them.

use half::bf16;

use super::tiles::{Product, SIDE, Tiles};
use super::{Amx, Avx512Bf16};

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
    /// Multiplies rows `rows` of the left side by the first columns of the next step.
    unsafe fn product(p: &Product, rows: std::ops::Range<usize>, columns: usize) {
        for (i, j) in rows.flat_map(|i| (0..columns).map(move |j| (i, j))) {
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
        unsafe { Self::product(p, 0..SIDE, 2 * SIDE) }
    }

    unsafe fn lower(self, p: &Product) {
        // SAFETY: the caller's promise.
        unsafe { Self::product(p, if p.high { SIDE..2 * SIDE } else { 0..0 }, 2 * SIDE) }
    }

    unsafe fn store(self, _: &Product) {}

    unsafe fn hold(self, _: &Product) {}

    unsafe fn first_held(self, p: &Product) {
        for i in 0..2 * SIDE {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts_mut(p.c.0.byte_add(i * p.c.1), SIDE).fill(0.0) };
        }
        // SAFETY: the caller's promise.
        unsafe { Self::product(p, 0..2 * SIDE, SIDE) }
    }

    unsafe fn second_held(self, p: &Product) {
        let mut second = *p;
        second.step();
        // SAFETY: the caller's promise.
        unsafe { Self::product(&second, 0..2 * SIDE, SIDE) }
    }

    unsafe fn store_held(self, _: &Product) {}
}
