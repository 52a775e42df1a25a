//! Bytes in and out of a device, and what it refuses.

mod common;

use common::*;
use turbospark_device::op::{Copy, Gather, Matmul, Zero};
use turbospark_device::{Device, DeviceError, Pass, ReferenceDevice};
use turbospark_device_wgpu::Adapter;
use turbospark_tensor::DType;

#[test]
fn bytes_come_back_from_any_place_and_their_neighbours_stay() {
    let Some(gpu) = gpu() else { return };
    let device: &dyn Device = gpu;
    for (len, at, some) in [(1, 0, 1), (7, 3, 4), (64, 1, 62), (64, 5, 3), (33, 32, 1), (100, 4, 8), (9, 2, 7)] {
        let buffer = device.alloc("test", len).unwrap();
        let all: Vec<u8> = (0..len).map(|i| i as u8 + 1).collect();
        let mut got = vec![7; len];
        device.read(buffer.bytes(), &mut got).unwrap();
        assert!(got.iter().all(|&b| b == 0), "a new buffer is zeroed");
        device.write(buffer.bytes(), &all).unwrap();
        let part = buffer.view(at, DType::U8, [some]);
        device.write(part, &vec![200; some]).unwrap();
        device.read(buffer.bytes(), &mut got).unwrap();
        let want: Vec<u8> = (0..len).map(|i| if (at..at + some).contains(&i) { 200 } else { all[i] }).collect();
        assert_eq!(got, want);
        let fill = |out: &mut [u8]| {
            out.copy_from_slice(&all[..some]);
            Ok(())
        };
        device.fill(part, &mut { fill }).unwrap();
        device.read(part, &mut got[..some]).unwrap();
        assert_eq!(got[..some], all[..some]);
    }
}

#[test]
fn a_readers_error_and_foreign_buffers_are_told() {
    let Some(gpu) = gpu() else { return };
    let buffer = gpu.alloc("test", 64).unwrap();
    let error = gpu.fill(buffer.bytes(), &mut |_| Err(std::io::Error::other("no such file"))).unwrap_err();
    assert!(matches!(&error, DeviceError::Weights(e) if e.to_string() == "no such file"), "{error}");
    let foreign = ReferenceDevice.alloc("test", 64).unwrap();
    let (from, to) = (foreign.view(0, DType::F32, [4]), buffer.view(0, DType::F32, [4]));
    let mut pass = Pass::new(gpu);
    pass.copy(Copy { from, to });
    assert!(matches!(pass.submit(), Err(DeviceError::ForeignBuffer(_))));
    assert!(gpu.read(foreign.bytes(), &mut [0; 4]).is_err());
}

#[test]
fn vectors_are_copied_whole_and_nothing_beside_them() {
    for device in all() {
        // The last workgroup has less to do than the others, and threads move vectors far apart.
        for (from, to, count) in [(4, 8, 5220), (0, 0, 4), (12, 4, 4096)] {
            let values: Vec<f32> = (0..from + count + 4).map(|i| i as f32 + 1.0).collect();
            let (source, target) = (put_f32(device, &values), put_f32(device, &vec![0.5; to + count + 4]));
            let mut pass = Pass::new(device);
            let view = |b, at: usize| turbospark_device::Buffer::view(b, 4 * at, DType::F32, [count / 4, 4]);
            pass.copy(Copy { from: view(&source, from), to: view(&target, to) });
            pass.submit().unwrap();
            let mut want = vec![0.5; to + count + 4];
            want[to..to + count].copy_from_slice(&values[from..from + count]);
            assert_eq!(get(device, &target), want);
        }
    }
}

#[test]
fn more_than_there_is_is_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let error = gpu.alloc("lm_head.weight", 1 << 45).unwrap_err().to_string();
    assert!(error.contains("lm_head.weight") && error.contains(&(1u64 << 45).to_string()), "{error}");
    // What was refused leaves the device as it was.
    let held: Vec<_> = (0..1 << 12).map_while(|_| gpu.alloc("a large slot", 1 << 30).ok()).take(2).collect();
    assert!(!held.is_empty());
    assert!(gpu.alloc("test", 64).is_ok());
}

#[test]
fn ids_that_lead_out_of_a_table_reach_no_other_memory() {
    let Some(gpu) = gpu() else { return };
    let device: &dyn Device = gpu;
    let (table, out) = (put_f32(device, &[1.0; 8]), put_f32(device, &[5.0; 8]));
    let index = put_i32(device, &[1, 1 << 30]);
    let mut pass = Pass::new(device);
    pass.gather(Gather {
        table: table.view(0, DType::F32, [2, 4]).into(),
        index: index.view(0, DType::I32, [2]),
        weights: None,
        out: out.view(0, DType::F32, [2, 4]),
        accumulate: false,
    });
    pass.submit().unwrap();
    assert_eq!(get(device, &out), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn an_adapter_is_found_by_name_and_a_wrong_name_lists_what_there_is() {
    let all = Adapter::all();
    let Some(first) = all.first() else { return };
    assert_eq!(Adapter::choose(Some("0")).unwrap().name(), first.name());
    assert_eq!(Adapter::choose(Some(first.name())).unwrap().name(), first.name());
    let error = Adapter::choose(Some("no such adapter")).unwrap_err().to_string();
    assert!(error.contains("no such adapter") && error.contains(first.name()), "{error}");
}

/// As of a table of more than two gigabytes, on an adapter whose buffers end at a quarter of a megabyte.
#[test]
fn memory_larger_than_a_buffer_is_read_in_parts() {
    let Some(adapter) = Adapter::all().into_iter().next() else { return };
    let limits = wgpu::Limits { max_buffer_size: 256 << 10, ..adapter.wgpu().limits() };
    let limits = wgpu::Limits { max_storage_buffer_binding_size: 256 << 10, ..limits };
    let device: &dyn Device = &with_limits(&adapter, limits);
    let (rows, k) = (1500, 333);
    let values = random(5, rows * k);
    let table = put(device, DType::F16, &values);
    let mut back = vec![0; table.len()];
    device.read(table.bytes(), &mut back).unwrap();
    assert!(back == encode(DType::F16, &values));
    let run = |d: &dyn Device| {
        let own = put(d, DType::F16, &values);
        let ids: Vec<i32> = (0..64).map(|i| (i * 97 % rows) as i32).collect();
        let (index, found) = (put_i32(d, &ids), put_f32(d, &vec![0.0; 64 * k]));
        let (x, out) = (put_f32(d, &random(6, 3 * k)), put_f32(d, &vec![0.0; 3 * rows]));
        let table = own.view(0, DType::F16, [rows, k]);
        let mut pass = Pass::new(d);
        let index = index.view(0, DType::I32, [64]);
        let to = found.view(0, DType::F32, [64, k]);
        pass.gather(Gather { table: table.into(), index, weights: None, out: to, accumulate: false });
        let (x, to) = (x.view(0, DType::F32, [3, k]), out.view(0, DType::F32, [3, rows]));
        pass.matmul(Matmul { prompt_rows: 2, ..Matmul::new(x, table, to) });
        pass.submit().unwrap();
        [get(d, &found), get(d, &out)]
    };
    let ([found, out], [want_found, want]) = (run(device), run(&ReferenceDevice));
    assert!(found == want_found);
    let within = sum_of(k);
    assert!(out.iter().zip(&want).all(|(a, b)| (a - b).abs() <= within * (1.0 + b.abs())));
    let mut pass = Pass::new(device);
    pass.zero(Zero { out: table.bytes() });
    assert!(pass.submit().unwrap_err().to_string().contains("a kernel sees at most"));
}

#[test]
fn a_lost_device_is_an_error_of_every_call_and_none_waits() {
    let Some(adapter) = Adapter::all().into_iter().next() else { return };
    let (gpu, lose) = losable(&adapter);
    let device: &dyn Device = &gpu;
    let buffer = put_f32(device, &[1.0; 64]);
    let zero = || {
        let mut pass = Pass::new(device);
        pass.zero(Zero { out: buffer.view(0, DType::F32, [64]) });
        pass.submit()
    };
    zero().unwrap();
    device.finish().unwrap();
    lose();
    let lost = |what: &str, done: Result<(), DeviceError>| {
        let error = done.expect_err(what).to_string();
        assert!(error.contains("lost"), "{what}: {error}");
    };
    lost("a pass", zero());
    lost("the pass after it", zero());
    lost("reading", device.read(buffer.bytes(), &mut [0; 256]));
    lost("writing", device.write(buffer.bytes(), &[0; 256]));
    lost("allocating", device.alloc("test", 64).map(drop));
    lost("waiting", device.finish());
}
