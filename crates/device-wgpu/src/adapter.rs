use std::fmt;

use turbospark_device::DeviceError;

/// What kind of processor an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU lent by a virtual machine.
    Virtual,
    /// The processor, behind a graphics API: for tests.
    Software,
    /// Not said.
    Other,
}

/// What kernels find on an adapter: it decides which of them run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Arithmetic in f16.
    pub f16: bool,
    /// Fewest and most lanes of a subgroup, where there are any.
    pub subgroups: Option<(u32, u32)>,
    /// Whether compiled kernels can be kept on the disk.
    pub pipeline_cache: bool,
    /// The largest buffer: a slot or a tensor is one.
    pub buffer_bytes: u64,
    /// The most bytes that a kernel sees of a buffer; larger weights are taken in parts.
    pub binding_bytes: u64,
    /// What windows of buffers are aligned to, in bytes.
    pub offset_align: u32,
    /// The adapter's own memory, where the API tells (Vulkan); of one that shares the processor's, that.
    pub memory_bytes: Option<u64>,
    /// Memory that the threads of a workgroup share.
    pub workgroup_bytes: u32,
    /// Threads of a workgroup.
    pub workgroup_threads: u32,
    /// Sides and types of the matrix units' products, in words.
    pub matrices: Vec<String>,
    /// Side of the squares that kernels multiply on them, where they do.
    pub matrix_side: Option<u32>,
}

/// A graphics adapter of this machine.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub(crate) inner: wgpu::Adapter,
    info: wgpu::AdapterInfo,
}

impl Adapter {
    /// Of an adapter that an application already has.
    pub fn new(adapter: wgpu::Adapter) -> Self {
        Adapter { info: adapter.get_info(), inner: adapter }
    }

    /// All adapters of this machine, the ones that compute fastest first.
    pub fn all() -> Vec<Adapter> {
        let instance = crate::trust::instance();
        let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
        let mut all: Vec<Adapter> = found.into_iter().map(Adapter::new).collect();
        all.retain(|a| a.inner.features().contains(wgpu::Features::IMMEDIATES));
        all.sort_by_key(|a| match a.kind() {
            AdapterKind::Discrete => 0,
            AdapterKind::Integrated => 1,
            AdapterKind::Virtual => 2,
            AdapterKind::Other => 3,
            AdapterKind::Software => 4,
        });
        all
    }

    /// The first adapter whose name or number in [`Adapter::all`] is `wanted`; without one, the first that is no
    /// software.
    ///
    /// # Errors
    /// When there is none; the message lists those that there are.
    pub fn choose(wanted: Option<&str>) -> Result<Adapter, DeviceError> {
        let all = Adapter::all();
        let fits = |i: usize, a: &Adapter| match wanted {
            Some(name) => name == i.to_string() || a.info.name.to_lowercase().contains(&name.to_lowercase()),
            None => a.kind() != AdapterKind::Software,
        };
        let found = all.iter().enumerate().find(|(i, a)| fits(*i, a)).map(|(_, a)| a.clone());
        found.ok_or_else(|| {
            let names: Vec<String> = all.iter().enumerate().map(|(i, a)| format!("{i}: {a}")).collect();
            let there = if names.is_empty() { "this machine has none".into() } else { names.join(", ") };
            DeviceError::Unsupported(match wanted {
                Some(name) => format!("no graphics adapter {name:?}; {there}"),
                None => format!("no graphics adapter that is hardware; {there}"),
            })
        })
    }

    /// The API's own adapter.
    pub fn wgpu(&self) -> &wgpu::Adapter {
        &self.inner
    }

    /// Its name, as the driver tells it.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// The API that it is reached through, such as `vulkan`.
    pub fn api(&self) -> &'static str {
        self.info.backend.to_str()
    }

    /// The driver and its version.
    pub fn driver(&self) -> String {
        format!("{} {}", self.info.driver, self.info.driver_info).trim().to_owned()
    }

    /// What kind of processor it is.
    pub fn kind(&self) -> AdapterKind {
        match self.info.device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => AdapterKind::Other,
        }
    }

    /// Side of the squares that its matrix units multiply, f16 times f16 into f32, if a device of these features may.
    pub(crate) fn matrix_side(&self, features: wgpu::Features) -> Option<u32> {
        use wgpu::CooperativeScalarType::{F16, F32};
        if !features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16) {
            return None;
        }
        let listed = self.inner.cooperative_matrix_properties();
        let has = |side: u32| {
            let square = |p: &&wgpu::CooperativeMatrixProperties| [p.m_size, p.n_size, p.k_size] == [side; 3];
            listed.iter().filter(square).any(|p| p.ab_type == F16 && p.cr_type == F32)
        };
        [16, 8].into_iter().find(|&side| has(side))
    }

    /// What kernels find on it.
    pub fn capabilities(&self) -> Capabilities {
        let (features, limits) = (self.inner.features(), self.inner.limits());
        let has = |feature| features.contains(feature);
        let subgroups = has(wgpu::Features::SUBGROUP);
        let matrices = self.inner.cooperative_matrix_properties();
        let one_size = subgroups && (self.info.subgroup_min_size, self.info.subgroup_max_size) == (32, 32);
        let matrix = |m: &wgpu::CooperativeMatrixProperties| {
            format!("{}x{}x{} {:?}, sums {:?}", m.m_size, m.n_size, m.k_size, m.ab_type, m.cr_type)
        };
        Capabilities {
            f16: has(wgpu::Features::SHADER_F16),
            subgroups: subgroups.then_some((self.info.subgroup_min_size, self.info.subgroup_max_size)),
            pipeline_cache: has(wgpu::Features::PIPELINE_CACHE),
            buffer_bytes: limits.max_buffer_size,
            binding_bytes: limits.max_storage_buffer_binding_size,
            offset_align: limits.min_storage_buffer_offset_alignment,
            memory_bytes: crate::trust::memory_bytes(&self.inner),
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            workgroup_threads: limits.max_compute_invocations_per_workgroup,
            matrices: matrices.iter().map(matrix).collect(),
            matrix_side: self.matrix_side(features).filter(|_| one_size),
        }
    }

    pub(crate) fn info(&self) -> &wgpu::AdapterInfo {
        &self.info
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.info.name, self.api())
    }
}
