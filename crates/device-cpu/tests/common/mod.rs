//! What the tests share: devices of every kind and a comparison with the reference device.
#![allow(dead_code)]

use std::sync::OnceLock;

use turbospark_device::{Device, Precision, ReferenceDevice};
use turbospark_device_cpu::{CpuDevice, CpuOptions, Isa};

#[path = "../../../testkit/ops/support.rs"]
mod support;
pub use support::*;

/// One device in f32 for every instruction set that this CPU has and every number of threads from 1 to 4.
pub fn devices() -> &'static [Vec<CpuDevice>] {
    static DEVICES: OnceLock<Vec<Vec<CpuDevice>>> = OnceLock::new();
    DEVICES.get_or_init(|| make(Precision::F32))
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static dyn Device> {
    devices().iter().flatten().map(|d| d as &dyn Device)
}

/// How many of `cases` are drawn: all of them.
pub fn fewer(cases: u32) -> u32 {
    cases
}

/// As [`devices`], with inputs of matrix products rounded where the CPU is faster for it.
pub fn rounding_devices() -> &'static [Vec<CpuDevice>] {
    static DEVICES: OnceLock<Vec<Vec<CpuDevice>>> = OnceLock::new();
    DEVICES.get_or_init(|| make(Precision::Auto))
}

fn make(precision: Precision) -> Vec<Vec<CpuDevice>> {
    let device =
        |isa, threads| CpuDevice::new(CpuOptions { threads: Some(threads), isa: Some(isa), precision }).unwrap();
    Isa::available().into_iter().map(|isa| (1..=4).map(|threads| device(isa, threads)).collect()).collect()
}

/// Runs `f` on the reference device and on every CPU device: each output lies within `tolerance` of the
/// reference's (times one plus its size), and the number of threads changes no bit.
pub fn check(tolerance: f32, f: impl Fn(&dyn Device) -> Vec<Vec<f32>>) {
    check_on(devices(), tolerance, f);
}

/// [`check`] on some devices, those of an instruction set together.
pub fn check_on(devices: &[Vec<CpuDevice>], tolerance: f32, f: impl Fn(&dyn Device) -> Vec<Vec<f32>>) {
    let want = f(&ReferenceDevice);
    for kind in devices {
        let first = f(&kind[0]);
        for (o, (got, want)) in first.iter().zip(&want).enumerate() {
            assert_eq!(got.len(), want.len());
            for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
                let fits = g == w || (g - w).abs() <= tolerance * (1.0 + w.abs());
                assert!(fits, "{}: output {o}[{i}]: {g}, expected {w} within {tolerance}", kind[0].name());
            }
        }
        for device in &kind[1..] {
            assert!(bits(&f(device)) == bits(&first), "{} differs from one thread", device.name());
        }
    }
}
