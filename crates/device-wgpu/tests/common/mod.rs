//! What the tests share: an adapter, software where there is no other, and a comparison with the reference device.
#![allow(dead_code, reason = "no file of tests needs all of it")]

use std::sync::OnceLock;

use turbospark_device::{Device, Precision, ReferenceDevice};
use turbospark_device_wgpu::{Adapter, WgpuDevice, WgpuOptions};

#[path = "../../../testkit/ops/support.rs"]
mod support;
pub use support::*;

fn open(precision: Precision) -> Option<WgpuDevice> {
    let adapters = Adapter::all();
    let Some(adapter) = adapters.first() else {
        eprintln!("skipped: no Vulkan adapter");
        return None;
    };
    Some(WgpuDevice::new(adapter, WgpuOptions { precision, ..WgpuOptions::default() }).unwrap())
}

/// The first adapter in f32, or none: then the test says that it was skipped.
pub fn gpu() -> Option<&'static WgpuDevice> {
    static DEVICE: OnceLock<Option<WgpuDevice>> = OnceLock::new();
    DEVICE.get_or_init(|| open(Precision::F32)).as_ref()
}

/// All devices: one, or none.
pub fn all() -> impl Iterator<Item = &'static dyn Device> {
    gpu().into_iter().map(|d| d as &dyn Device)
}

/// How many of `cases` are drawn: software adapters are slow, and each size of head is compiled anew.
pub fn fewer(cases: u32) -> u32 {
    cases / 4
}

/// Runs `f` on the reference device and on the adapter: each output lies within `tolerance` of the reference's
/// (times one plus its size).
pub fn check(tolerance: f32, f: impl Fn(&dyn Device) -> Vec<Vec<f32>>) {
    let Some(device) = gpu() else { return };
    let (got, want) = (f(device), f(&ReferenceDevice));
    for (o, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!(got.len(), want.len());
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let fits = g == w || (g - w).abs() <= tolerance * (1.0 + w.abs());
            assert!(fits, "{}: output {o}[{i}]: {g}, expected {w} within {tolerance}", device.name());
        }
    }
}
