//! What the device refuses, and with which words.

mod common;

use std::sync::Arc;

use common::*;
use turbospark_device::op::*;
use turbospark_device::{Device, DeviceError, Pass, ReferenceDevice, Span};
use turbospark_device_cpu::{CpuDevice, CpuOptions, Isa};
use turbospark_tensor::{Code, DType, ScaledForm};

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap()
}

fn message<'a>(d: &'a dyn Device, record: impl FnOnce(&mut Pass<'a>)) -> String {
    let mut pass = Pass::new(d);
    pass.scope("decoder layer", 3);
    record(&mut pass);
    pass.submit().unwrap_err().to_string()
}

#[test]
fn a_wrong_shape_is_refused_with_the_name_of_its_op() {
    let d = &cpu();
    let b = put_f32(d, &[0.0; 64]);
    let (x, w, out) = (b.view(0, DType::F32, [2, 4]), b.view(64, DType::F32, [3, 5]), b.view(128, DType::F32, [2, 3]));
    let said = message(d, |pass| pass.matmul(Matmul::new(x, w, out)));
    assert!(said.contains("decoder layer 3") && said.contains("Matmul") && said.contains("[3, 5]"), "{said}");
}

#[test]
fn blocks_are_taken_by_linear_layers_and_tables_only_and_as_whole_rows() {
    let d = &cpu();
    let b = put_f32(d, &[0.0; 4096]);
    let f = |at: usize, dims: &[usize]| b.view(4 * at, DType::F32, turbospark_tensor::Shape::new(dims));
    let blocks = |dims: &[usize]| b.view(0, DType::Q4_K, turbospark_tensor::Shape::new(dims));
    let (x, out) = (f(3000, &[1, 100]), f(3500, &[1, 4]));
    let said = message(d, |pass| pass.matmul(Matmul::new(x, blocks(&[4, 100]), out)));
    assert!(said.contains("weight is Q4_K") && said.contains("rows of 100 are no whole blocks of 256"), "{said}");
    let x = f(3000, &[1, 256]);
    let said = message(d, |pass| {
        let layout = WeightLayout::InOut;
        pass.matmul(Matmul { layout, ..Matmul::new(x, blocks(&[256, 256]), f(3500, &[1, 256])) });
    });
    assert!(said.contains("weight is Q4_K in [in, out], expected [out, in]"), "{said}");
    let said = message(d, |pass| {
        pass.matmul(Matmul { bias: Some(blocks(&[256])), ..Matmul::new(x, f(0, &[4, 256]), out) });
    });
    assert!(said.contains("bias is Q4_K, expected a float type"), "{said}");
    let said = message(d, |pass| {
        pass.rms_norm(RmsNorm { x, weight: blocks(&[256]), one_plus: false, eps: 1e-6, gate: None, out: x });
    });
    assert!(said.contains("RmsNorm") && said.contains("weight is Q4_K, expected a float type"), "{said}");
    let said = message(d, |pass| pass.zero(Zero { out: blocks(&[256]) }));
    assert!(said.contains("out is Q4_K, expected a plain type"), "{said}");
    let said = message(d, |pass| pass.copy(Copy { from: blocks(&[256]), to: f(3000, &[256]) }));
    assert!(said.contains("from is Q4_K, expected a plain type"), "{said}");
}

#[test]
fn codes_and_scales_that_do_not_fit_each_other_are_refused() {
    let d = &cpu();
    let b = put_f32(d, &[0.0; 4096]);
    let view = |dtype, dims: &[usize]| b.view(0, dtype, turbospark_tensor::Shape::new(dims));
    let (x, out) = (b.view(12000, DType::F32, [1, 128]), b.view(14000, DType::F32, [1, 4]));
    let good = ScaledWeight {
        codes: view(DType::U32, &[4, 16]),
        scales: view(DType::BF16, &[4, 2]),
        biases: Some(view(DType::BF16, &[4, 2])),
        order: None,
        form: ScaledForm::new(Code::Unsigned(4), 64, 1).unwrap(),
    };
    let bytes = ScaledWeight { codes: view(DType::U8, &[4, 16]), ..good };
    let beyond = put_bytes(d, &[128i32.to_le_bytes(); 128].concat());
    let cases = [
        (
            ScaledWeight { codes: view(DType::U32, &[4, 32]), ..good },
            "weight codes has shape [4, 32], expected [4, 16]",
        ),
        (bytes, "weight codes has shape [4, 16], expected [4, 64]"),
        (
            ScaledWeight { codes: view(DType::F16, &[4, 16]), ..good },
            "weight codes are F16, expected U32, I32, U8, I8 or F8_E4M3",
        ),
        (
            ScaledWeight { biases: Some(view(DType::BF16, &[4, 4])), ..good },
            "weight biases has shape [4, 4], expected [4, 2]",
        ),
        (ScaledWeight { biases: Some(view(DType::F16, &[4, 2])), ..good }, "weight scales are BF16, its biases F16"),
        (
            ScaledWeight { scales: view(DType::U8, &[4, 2]), ..good },
            "weight scales are U8, expected a float type, F8_E8M0 or F8_E4M3",
        ),
        (
            ScaledWeight { scales: view(DType::F8_E8M0, &[4, 2]), biases: Some(view(DType::F8_E8M0, &[4, 2])), ..good },
            "weight biases is F8_E8M0, expected a float type",
        ),
        (
            ScaledWeight { form: ScaledForm::new(Code::Unsigned(4), 64, 128).unwrap(), ..good },
            "weight scales has shape [4, 2], expected [1, 2]",
        ),
        (ScaledWeight { order: Some(view(DType::I32, &[64])), ..good }, "weight order has shape [64], expected [128]"),
        (
            ScaledWeight { order: Some(beyond.view(0, DType::I32, [128])), ..good },
            "weight has a column for input 128 of 128",
        ),
    ];
    for (weight, expected) in cases {
        let said = message(d, |pass| pass.matmul(Matmul::new(x, weight, out)));
        assert!(said.contains("Matmul") && said.contains(expected), "{said}");
    }
    let said = message(d, |pass| pass.matmul(Matmul { layout: WeightLayout::InOut, ..Matmul::new(x, good, out) }));
    assert!(said.contains("weight has scales of its own in [in, out]"), "{said}");
}

#[test]
fn a_cache_of_blocks_is_q8_0_and_has_whole_blocks_a_head() {
    let d = &cpu();
    let (b, slots) = (put_f32(d, &[0.0; 4096]), put_i32(d, &[0, 0]));
    for (dtype, n, words) in [
        (DType::Q8_0, 40, "k_cache is Q8_0: heads of 40 are no whole blocks of 32"),
        (DType::Q4_K, 256, "k_cache is Q4_K, expected a float type or Q8_0"),
    ] {
        let (rows, cache) = (|at| b.view(at, DType::F32, [1, 1, n]), |at| b.view(at, dtype, [2, 1, n]));
        let (slot, pages) = (slots.view(0, DType::I32, [1]), slots.view(0, DType::I32, [1, 2]));
        let (k_cache, v_cache) = (cache(8192), cache(12288));
        let said = message(d, |pass| {
            pass.store_kv(StoreKv { k: rows(0), v: rows(2048), slots: slot, k_cache, v_cache });
        });
        assert!(said.contains("StoreKv") && said.contains(words), "{said}");
        let spans = [span(0, 1, 0, true, 0)];
        let said = message(d, |pass| {
            let (q, out) = (rows(0), rows(2048));
            let (page_len, scale, spans) = (1, 1.0, &spans);
            pass.paged_attention(PagedAttention { q, k_cache, v_cache, pages, page_len, spans, scale, out });
        });
        assert!(said.contains("PagedAttention") && said.contains(words), "{said}");
    }
}

#[test]
fn numbers_on_the_device_that_lead_out_of_memory_are_refused() {
    let d = &cpu();
    let table = put_f32(d, &[1.0; 8]);
    let out = put_f32(d, &[0.0; 8]);
    for id in [2, i32::MAX] {
        let index = put_i32(d, &[1, id]);
        let said = message(d, |pass| {
            pass.gather(Gather {
                table: table.view(0, DType::F32, [2, 4]).into(),
                index: index.view(0, DType::I32, [2]),
                weights: None,
                out: out.view(0, DType::F32, [2, 4]),
                accumulate: false,
            });
        });
        assert!(said.contains("Gather") && said.contains("decoder layer 3") && said.contains("table of 2"), "{said}");
    }
    for slot in [-1, 2] {
        let slots = put_i32(d, &[slot]);
        let one = |b| turbospark_device::Buffer::view(b, 0, DType::F32, [1, 1, 4]);
        let caches = [put_f32(d, &[0.0; 8]), put_f32(d, &[0.0; 8])];
        let cache = caches.each_ref().map(|c| c.view(0, DType::F32, [2, 1, 4]));
        let said = message(d, |pass| {
            let slots = slots.view(0, DType::I32, [1]);
            pass.store_kv(StoreKv { k: one(&table), v: one(&table), slots, k_cache: cache[0], v_cache: cache[1] });
        });
        assert!(said.contains("StoreKv") && said.contains(&format!("slot {slot} of 2")), "{said}");
    }
    for page in [-1, 1] {
        let pages = put_i32(d, &[page]);
        let cache = put_f32(d, &[0.0; 16]);
        let spans = [Span { first_row: 0, rows: 1, start: 0, decode: true, table: 0, state: 0, snapshots: vec![] }];
        let said = message(d, |pass| {
            pass.paged_attention(PagedAttention {
                q: table.view(0, DType::F32, [1, 1, 4]),
                k_cache: cache.view(0, DType::F32, [4, 1, 4]),
                v_cache: cache.view(0, DType::F32, [4, 1, 4]),
                pages: pages.view(0, DType::I32, [1, 1]),
                page_len: 4,
                spans: &spans,
                scale: 1.0,
                out: out.view(0, DType::F32, [1, 1, 4]),
            });
        });
        assert!(said.contains("PagedAttention") && said.contains(&format!("page {page} of 1")), "{said}");
    }
}

#[test]
fn an_output_that_overlaps_an_input_is_refused_unless_the_op_allows_it() {
    let d = &cpu();
    let b = put_f32(d, &[0.5; 64]);
    let x = b.view(0, DType::F32, [4, 8]);
    let w = put_f32(d, &[1.0; 8]);
    let norm = |out| RmsNorm { x, weight: w.view(0, DType::F32, [8]), one_plus: false, eps: 1e-6, gate: None, out };
    let shifted = b.view(32, DType::F32, [4, 8]);
    let said = message(d, |pass| pass.rms_norm(norm(shifted)));
    assert!(said.contains("RmsNorm") && said.contains("overlap"), "{said}");
    let mut pass = Pass::new(d);
    pass.rms_norm(norm(x));
    pass.submit().unwrap();
}

#[test]
fn sequences_that_share_rows_are_refused() {
    let d = &cpu();
    let b = put_f32(d, &[0.5; 64]);
    let (cache, out) = (put_f32(d, &[0.5; 64]), put_f32(d, &[0.0; 64]));
    let pages = put_i32(d, &[0, 0]);
    let spans = [span(0, 2, 0, false, 0), span(1, 2, 0, false, 1)];
    let said = message(d, |pass| {
        pass.paged_attention(PagedAttention {
            q: b.view(0, DType::F32, [3, 1, 4]),
            k_cache: cache.view(0, DType::F32, [4, 1, 4]),
            v_cache: cache.view(0, DType::F32, [4, 1, 4]),
            pages: pages.view(0, DType::I32, [2, 1]),
            page_len: 4,
            spans: &spans,
            scale: 1.0,
            out: out.view(0, DType::F32, [3, 1, 4]),
        });
    });
    assert!(said.contains("share rows"), "{said}");
}

#[test]
fn a_mapping_is_not_written_and_not_read_askew() {
    let d = &cpu();
    let adopted = d.adopt(Arc::new(vec![0u8; 65])).unwrap().unwrap();
    let said = message(d, |pass| pass.zero(Zero { out: adopted.bytes() }));
    assert!(said.contains("Zero") && said.contains("adopted mapping"), "{said}");
    let error = d.fill(adopted.bytes(), &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, DeviceError::Unsupported(_)), "{error}");
    let mut back = [1u8; 5];
    d.read(adopted.view(60, DType::U8, [5]), &mut back).unwrap();
    assert_eq!(back, [0; 5]);
}

#[test]
fn memory_belongs_to_one_device_and_has_bounds() {
    let (d, other) = (&cpu(), &cpu());
    let b = put_f32(d, &[0.0; 4]);
    assert!(matches!(other.read(b.bytes(), &mut [0; 16]), Err(DeviceError::ForeignBuffer(_))));
    assert!(matches!(ReferenceDevice.read(b.bytes(), &mut [0; 16]), Err(DeviceError::ForeignBuffer(_))));
    assert!(matches!(d.read(b.bytes(), &mut [0; 17]), Err(DeviceError::OutOfBounds { .. })));
    assert!(matches!(d.write(b.view(8, DType::U8, [16]), &[0; 16]), Err(DeviceError::OutOfBounds { .. })));
    let strided = b.view(0, DType::F32, [2, 2]).narrow(1, 0..1);
    assert!(matches!(d.write(strided, &[0; 8]), Err(DeviceError::OutOfBounds { .. })));
    let too_much = d.alloc("all of it", usize::MAX / 2).unwrap_err();
    assert!(too_much.to_string().contains("all of it"), "{too_much}");
    let failed = d.fill(b.bytes(), &mut |_| Err(std::io::Error::other("gone"))).unwrap_err();
    assert!(failed.to_string().contains("gone"), "{failed}");
}

#[test]
fn an_instruction_set_that_the_cpu_lacks_is_refused() {
    let has = Isa::available();
    assert!(has.contains(&Isa::Portable));
    for isa in Isa::ALL.into_iter().filter(|isa| !has.contains(isa)) {
        let error = CpuDevice::new(CpuOptions { isa: Some(isa), ..CpuOptions::default() }).unwrap_err();
        assert!(error.to_string().contains(&format!("no {isa}")) && error.to_string().contains("portable"), "{error}");
    }
    assert!(CpuDevice::new(CpuOptions { threads: Some(0), ..CpuOptions::default() }).is_err());
    assert_eq!("avx2".parse::<Isa>().unwrap(), Isa::Avx2);
    assert!("sse9".parse::<Isa>().unwrap_err().to_string().contains("sse9"));
}

#[test]
fn the_name_tells_the_instruction_set_and_the_threads() {
    let d = CpuDevice::new(CpuOptions { threads: Some(2), isa: Some(Isa::Portable), ..CpuOptions::default() }).unwrap();
    assert_eq!(d.name(), "cpu (portable, 2 threads)");
}

#[test]
fn a_slot_is_filled_while_a_pass_runs_on_others() {
    let d = &cpu();
    let (a, b) = (put_f32(d, &[1.0; 1024]), put_f32(d, &[0.0; 1024]));
    let out = put_f32(d, &[0.0; 1]);
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let b = &b;
        scope.spawn(move || {
            d.fill(b.bytes(), &mut |bytes| {
                // Holds slot `b` until the pass on `a` is through.
                receive.recv().unwrap();
                bytes.fill(0);
                Ok(())
            })
            .unwrap();
        });
        let mut pass = Pass::new(d);
        let (x, w) = (a.view(0, DType::F32, [1, 512]), a.view(2048, DType::F32, [1, 512]));
        pass.matmul(Matmul::new(x, w, out.view(0, DType::F32, [1, 1])));
        pass.submit().unwrap();
        send.send(()).unwrap();
    });
    assert_eq!(get(d, &out), [512.0]);
}
