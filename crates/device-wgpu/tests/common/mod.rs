//! What the tests share: an adapter, software where there is no other, and a comparison with the reference device.
#![allow(dead_code, reason = "no file of tests needs all of it")]

use std::sync::OnceLock;

use turbospark_device::{Device, Precision, ReferenceDevice};
use turbospark_device_wgpu::{Adapter, WgpuDevice, WgpuOptions};

#[path = "../../../testkit/ops/support.rs"]
mod support;
pub use support::*;

mod translate;

/// A device with what the adapter has, and one of the same adapter without f16 and subgroups, both in f32.
///
/// Without an adapter there is one that computes nothing: then kernels are translated and no numbers looked at.
struct Devices {
    real: Vec<WgpuDevice>,
    nothing: Option<WgpuDevice>,
}

fn devices() -> &'static Devices {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let options = WgpuOptions { precision: Precision::F32, ..WgpuOptions::default() };
        let Some(adapter) = Adapter::all().into_iter().next() else {
            eprintln!("skipped: no Vulkan adapter; kernels are translated only");
            return Devices { real: Vec::new(), nothing: Some(nothing(options)) };
        };
        let real = vec![WgpuDevice::new(&adapter, options.clone()).unwrap(), bare(&adapter, options)];
        Devices { real, nothing: None }
    })
}

/// The adapter as one that has neither f16 nor subgroups.
fn bare(adapter: &Adapter, options: WgpuOptions) -> WgpuDevice {
    opened(adapter, adapter.wgpu().limits(), options)
}

/// A bare adapter with other limits, in f32.
pub fn with_limits(adapter: &Adapter, limits: wgpu::Limits) -> WgpuDevice {
    opened(adapter, limits, WgpuOptions { precision: Precision::F32, ..WgpuOptions::default() })
}

/// A bare adapter in f32, and what makes it lost.
pub fn losable(adapter: &Adapter) -> (WgpuDevice, impl FnOnce()) {
    let options = WgpuOptions { precision: Precision::F32, ..WgpuOptions::default() };
    let (gpu, device) = opened_with(adapter, adapter.wgpu().limits(), options);
    (gpu, move || device.destroy())
}

fn opened(adapter: &Adapter, limits: wgpu::Limits, options: WgpuOptions) -> WgpuDevice {
    opened_with(adapter, limits, options).0
}

fn opened_with(adapter: &Adapter, required_limits: wgpu::Limits, options: WgpuOptions) -> (WgpuDevice, wgpu::Device) {
    let descriptor =
        wgpu::DeviceDescriptor { required_features: wgpu::Features::IMMEDIATES, required_limits, ..Default::default() };
    let (device, queue) = pollster::block_on(adapter.wgpu().request_device(&descriptor)).unwrap();
    (WgpuDevice::with_device(adapter, device.clone(), queue, options).unwrap(), device)
}

/// A device of the API that takes everything and does nothing.
fn nothing(options: WgpuOptions) -> WgpuDevice {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
    let adapter = Adapter::new(adapters.into_iter().next().expect("it is compiled in"));
    WgpuDevice::new(&adapter, options).unwrap()
}

/// The first adapter in f32, or none: then the test says that it was skipped.
pub fn gpu() -> Option<&'static WgpuDevice> {
    devices().real.first()
}

/// All devices: two, or none.
pub fn all() -> impl Iterator<Item = &'static dyn Device> {
    devices().real.iter().map(|d| d as &dyn Device)
}

/// How many of `cases` are drawn: software adapters are slow, and each size of head is compiled anew.
pub fn fewer(cases: u32) -> u32 {
    cases / 10
}

/// Runs `f` on the reference device and on the adapter: each output lies within `tolerance` of the reference's
/// (times one plus its size). Every kernel that this composed is valid, and is translated for every API.
pub fn check(tolerance: f32, f: impl Fn(&dyn Device) -> Vec<Vec<f32>>) {
    if let Some(nothing) = &devices().nothing {
        f(nothing);
        return translate::check(nothing);
    }
    let want = f(&ReferenceDevice);
    for device in &devices().real {
        let got = f(device);
        translate::check(device);
        for (o, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.len(), want.len());
            for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
                let fits = g == w || (g - w).abs() <= tolerance * (1.0 + w.abs());
                assert!(fits, "{}: output {o}[{i}]: {g}, expected {w} within {tolerance}", device.name());
            }
        }
    }
}
