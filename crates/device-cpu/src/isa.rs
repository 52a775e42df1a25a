//! Which vector instructions the kernels use.

use std::{fmt, str::FromStr};

use turbospark_device::DeviceError;

use crate::simd::unit::{UnitTask, Vectors};
use crate::simd::{Simd, Task, portable::Portable};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Whatever the target always has.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 whose matrix products are in bf16, where the precision allows it.
    Avx512Bf16,
    /// The same on AMX tiles.
    Amx,
    /// ARM's 128-bit vectors, with dot products of bytes where the CPU has them.
    Neon,
    /// The same, whose matrix products are in bf16, where the precision allows it.
    NeonBf16,
}

impl Isa {
    /// All that this build knows; of one architecture, the slowest first.
    pub const ALL: [Isa; 7] =
        [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx, Isa::Neon, Isa::NeonBf16];

    /// Those that this CPU has.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|&isa| Kernels::new(isa).is_some()).collect()
    }

    /// The fastest that this CPU has.
    pub fn best() -> Isa {
        let slow = |isa: Isa| isa == Isa::Avx512Bf16 && !has_fast_bf16();
        Isa::available().into_iter().rfind(|&isa| !slow(isa)).unwrap_or(Isa::Portable)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonBf16 => "neonbf16",
        })
    }
}

impl FromStr for Isa {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        Isa::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| {
            let known = Isa::ALL.map(|isa| isa.to_string()).join(", ");
            DeviceError::Unsupported(format!("instruction set {name:?} is not known; choose one of {known}"))
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
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(crate::simd::avx512_bf16::Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Amx(crate::simd::amx::Amx<crate::simd::amx::Hardware>),
    #[cfg(all(test, target_arch = "x86_64"))]
    SoftwareAmx(crate::simd::amx::Amx<crate::simd::amx::software::Software>),
    #[cfg(target_arch = "aarch64")]
    Neon(crate::simd::neon::Neon),
    #[cfg(target_arch = "aarch64")]
    NeonBf16(crate::simd::neon_bf16::NeonBf16),
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
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => crate::simd::avx512_bf16::Avx512Bf16::new().map(Kernels::Avx512Bf16),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => crate::simd::amx::Amx::new().map(Kernels::Amx),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => crate::simd::neon::Neon::new().map(Kernels::Neon),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 => crate::simd::neon_bf16::NeonBf16::new().map(Kernels::NeonBf16),
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
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512Bf16(_) => Isa::Avx512Bf16,
            #[cfg(target_arch = "x86_64")]
            Kernels::Amx(_) => Isa::Amx,
            #[cfg(all(test, target_arch = "x86_64"))]
            Kernels::SoftwareAmx(_) => Isa::Amx,
            #[cfg(target_arch = "aarch64")]
            Kernels::Neon(_) => Isa::Neon,
            #[cfg(target_arch = "aarch64")]
            Kernels::NeonBf16(_) => Isa::NeonBf16,
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
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512Bf16(u) => u.vectors().run(task),
            #[cfg(target_arch = "x86_64")]
            Kernels::Amx(u) => u.vectors().run(task),
            #[cfg(all(test, target_arch = "x86_64"))]
            Kernels::SoftwareAmx(u) => u.vectors().run(task),
            #[cfg(target_arch = "aarch64")]
            Kernels::Neon(s) => s.run(task),
            #[cfg(target_arch = "aarch64")]
            Kernels::NeonBf16(u) => u.vectors().run(task),
        }
    }

    /// Runs a loop compiled for their matrix unit; in f32 with `exact`, else as the unit does it best.
    pub(crate) fn multiply(
        self,
        #[allow(unused_variables, reason = "not every CPU has a unit")] exact: bool,
        task: impl UnitTask,
    ) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512Bf16(u) if !exact => u.run(task),
            #[cfg(target_arch = "x86_64")]
            Kernels::Amx(u) if !exact => u.run(task),
            #[cfg(all(test, target_arch = "x86_64"))]
            Kernels::SoftwareAmx(u) if !exact => u.run(task),
            #[cfg(target_arch = "aarch64")]
            Kernels::NeonBf16(u) if !exact => u.run(task),
            _ => self.run(OnVectors(task)),
        }
    }

    /// Whether [`Kernels::pairs`] runs anything.
    pub(crate) fn has_pairs(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512Bf16(_) => true,
            #[cfg(target_arch = "aarch64")]
            Kernels::NeonBf16(_) => true,
            _ => false,
        }
    }

    /// Runs a loop compiled for their products of pairs of bf16 on the vectors, where these are what they are chosen
    /// for: beside AMX they are slower than f32.
    pub(crate) fn pairs(self, task: impl UnitTask) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512Bf16(u) => u.run(task),
            #[cfg(target_arch = "aarch64")]
            Kernels::NeonBf16(u) => u.run(task),
            _ => drop(task),
        }
    }
}

/// A loop over units on the vectors themselves.
pub(crate) struct OnVectors<T>(pub T);

impl<T: UnitTask> Task for OnVectors<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.run(Vectors(s));
    }
}

/// Whether products in bf16 on the vectors are faster than in f32.
fn has_fast_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return crate::simd::avx512_bf16::Avx512Bf16::is_fast();
    #[cfg(not(target_arch = "x86_64"))]
    false
}
