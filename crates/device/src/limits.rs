/// What the hardware reaches with nothing else to do, measured on the device's own threads: the roof that speeds
/// are held against.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// Threads that measured.
    pub threads: usize,
    /// Bytes a second read from memory, past every cache.
    pub read_bytes_per_s: f64,
    /// What each arithmetic unit does from registers.
    pub peaks: Vec<Peak>,
}

/// The rate of one arithmetic unit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Peak {
    /// The unit, such as `avx512` or `amx`.
    pub unit: &'static str,
    /// What it multiplies.
    pub inputs: Inputs,
    /// Multiplications and additions a second, counted apart.
    pub ops_per_s: f64,
}

/// What an arithmetic unit multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Inputs {
    /// f32.
    F32,
    /// bf16, summed in f32.
    Bf16,
    /// f16, summed in f32.
    F16,
    /// 8-bit integers, summed in 32 bit.
    Int8,
}

impl Limits {
    /// Of measured values.
    pub fn new(threads: usize, read_bytes_per_s: f64, peaks: Vec<Peak>) -> Self {
        Limits { threads, read_bytes_per_s, peaks }
    }

    /// The fastest unit that multiplies one of `inputs`.
    pub fn peak(&self, inputs: &[Inputs]) -> Option<&Peak> {
        let fit = self.peaks.iter().filter(|p| inputs.contains(&p.inputs));
        fit.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))
    }
}

impl Peak {
    /// Of a measured rate.
    pub fn new(unit: &'static str, inputs: Inputs, ops_per_s: f64) -> Self {
        Peak { unit, inputs, ops_per_s }
    }
}

impl Inputs {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Inputs::F32 => "f32",
            Inputs::Bf16 => "bf16",
            Inputs::F16 => "f16",
            Inputs::Int8 => "int8",
        }
    }
}
