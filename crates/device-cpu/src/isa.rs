//! Which vector instructions the kernels use.

use std::{fmt, str::FromStr};

use turbospark_device::DeviceError;

use crate::simd::{Task, portable::Portable};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Whatever the target always has.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// ARM's 128-bit vectors.
    Neon,
}

impl Isa {
    /// All that this build knows, the slowest first.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// Those that this CPU has, the slowest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|&isa| Kernels::new(isa).is_some()).collect()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        })
    }
}

impl FromStr for Isa {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        Isa::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| {
            DeviceError::Unsupported(format!(
                "instruction set {name:?} is not known; choose portable, avx2, avx512 or neon"
            ))
        })
    }
}

/// The chosen instruction set, as proof that the CPU has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernels {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(crate::simd::avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(crate::simd::avx512::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(crate::simd::neon::Neon),
}

impl Kernels {
    /// The kernels for `isa`, or `None` where the CPU lacks it.
    pub(crate) fn new(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Portable => Some(Kernels::Portable(Portable)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => crate::simd::avx2::Avx2::new().map(Kernels::Avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => crate::simd::avx512::Avx512::new().map(Kernels::Avx512),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => crate::simd::neon::Neon::new().map(Kernels::Neon),
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }

    /// Which they are.
    pub(crate) fn isa(self) -> Isa {
        match self {
            Kernels::Portable(_) => Isa::Portable,
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512(_) => Isa::Avx512,
            #[cfg(target_arch = "aarch64")]
            Kernels::Neon(_) => Isa::Neon,
        }
    }

    /// Runs a loop compiled for them.
    pub(crate) fn run(self, task: impl Task) {
        match self {
            Kernels::Portable(s) => task.run(s),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2(s) => s.run(task),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512(s) => s.run(task),
            #[cfg(target_arch = "aarch64")]
            Kernels::Neon(s) => s.run(task),
        }
    }

    /// Rows and columns of the register tile.
    pub(crate) fn tile(self) -> (usize, usize) {
        struct Sides<'a>(&'a mut (usize, usize));
        impl Task for Sides<'_> {
            #[inline(always)]
            fn run<S: crate::simd::Simd>(self, _: S) {
                *self.0 = (S::TILE_ROWS, S::TILE_COLS);
            }
        }
        let mut sides = (0, 0);
        self.run(Sides(&mut sides));
        sides
    }
}
