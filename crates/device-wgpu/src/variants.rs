//! Variants for adapters that the tests may not find: composed on an adapter that does nothing, and translated.

use turbospark_device::op::{Attention, PagedAttention, StoreKv};
use turbospark_device::{Device, Op, Precision, Span};
use turbospark_tensor::DType;

use crate::kernel::compose;
use crate::plan::Plan;
use crate::{Adapter, WgpuDevice, WgpuOptions};

#[path = "../tests/common/translate.rs"]
mod translate;

/// A device of the API that takes everything and does nothing, as if it had these subgroups and matrix units.
pub(crate) fn nothing(subgroups: u32, matrices: Option<u32>) -> WgpuDevice {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
    let adapter = Adapter::new(adapters.into_iter().next().expect("it is compiled in"));
    let options = WgpuOptions { precision: Precision::Auto, ..WgpuOptions::default() };
    let mut device = WgpuDevice::new(&adapter, options).unwrap();
    device.gpu.subgroups = (subgroups, subgroups);
    device.gpu.matrix_side = matrices;
    // Squares of 8 are Metal's, whose units read scalars.
    device.gpu.matrix_attention = matrices.map(|side| side == 16);
    device.gpu.limits.max_compute_workgroup_storage_size = if matrices == Some(8) { 32 << 10 } else { 48 << 10 };
    device
}

/// The names of the kernels that an op takes, each translated.
fn names(device: &WgpuDevice, op: &Op<'_>) -> Vec<&'static str> {
    op.check().unwrap();
    let mut plan = Plan::new(&device.gpu);
    crate::ops::plan(&mut plan, op).unwrap();
    let dispatches = plan.dispatches.iter();
    dispatches
        .map(|d| {
            translate::text(d.source.name, &compose(d.source, &d.key));
            d.source.name
        })
        .collect()
}

#[test]
fn attention_has_a_variant_for_every_adapter() {
    let variants = [
        (8, None, ""),
        (32, None, "_shuffled"),
        (64, None, "_shuffled"),
        (32, Some(16), "_matrix"),
        (32, Some(8), "_matrix"),
    ];
    for (subgroups, matrices, suffix) in variants {
        let device = nothing(subgroups, matrices);
        for n in [64, 72, 128, 256] {
            let (rows, heads) = (70, 4);
            let memory = device.alloc("test", 4 * 512 * heads * n).unwrap();
            let part = |i: usize| memory.view(4 * i * rows * heads * n, DType::F32, [rows, heads, n]);
            let (q, k, v, out) = (part(0), part(1), part(2), part(3));
            let op = Attention { q, k, v, cu_seqlens: &[0, 30, rows], scale: 0.1, out };
            let all = names(&device, &Op::Attention(op));
            match matrices {
                Some(16) => assert_eq!(all, ["kv_halves", "kv_halves", "attention_matrix_halves"], "{n}"),
                _ => assert_eq!(all, [format!("attention{suffix}")], "{n}"),
            }
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
                if !n.is_multiple_of(dtype.block().elements) {
                    continue;
                }
                let cache = |i: usize| memory.view(4 * i * 128 * 2 * n, dtype, [128, 2, n]);
                let spans = [false, true].map(|decode| Span {
                    first_row: if decode { 69 } else { 0 },
                    rows: if decode { 1 } else { 69 },
                    start: 0,
                    decode,
                    table: 0,
                    state: 0,
                    snapshots: Vec::new(),
                });
                let (k_cache, v_cache) = (cache(0), cache(1));
                let pages = memory.view(0, DType::I32, [1, 2]);
                let op = PagedAttention { q, k_cache, v_cache, pages, page_len: 64, spans: &spans, scale: 0.1, out };
                let all = names(&device, &Op::PagedAttention(op));
                assert_eq!(all, [&*format!("paged_prompt{suffix}"), "paged_decode", "paged_combine"]);
                let (k, v) = (part(0).narrow(1, 0..2), part(1).narrow(1, 0..2));
                let op = StoreKv { k, v, slots: memory.view(0, DType::I32, [rows]), k_cache, v_cache };
                names(&device, &Op::StoreKv(op));
            }
        }
    }
}
