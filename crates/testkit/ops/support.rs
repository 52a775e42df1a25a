//! What tests of ops share: seeded numbers, buffers of them, and how far sums may lie apart.
#![allow(dead_code, reason = "no file of tests needs all of it")]

use turbospark_device::{Buffer, Device, Span};
use turbospark_tensor::{DType, f32_to_bf16, f32_to_f16};

/// Numbers in [-1, 1) that bf16 holds exactly.
pub fn random_bf16(seed: u64, n: usize) -> Vec<f32> {
    random(seed, n).into_iter().map(|x| f32::from_bits((f32_to_bf16(x) as u32) << 16)).collect()
}

/// Numbers in [-1, 1), the same for the same seed.
pub fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Values as bytes of a float or block type.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&x| f32_to_bf16(x).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&x| f32_to_f16(x).to_le_bytes()).collect(),
        blocks => {
            let mut out = vec![0; blocks.bytes(values.len()).unwrap()];
            turbospark_tensor::quant::quantise(values, blocks, &mut out).unwrap();
            out
        }
    }
}

/// Random blocks of a block type, `n` elements of about one in size.
pub fn random_blocks(seed: u64, dtype: DType, n: usize) -> Vec<u8> {
    let len = dtype.bytes(n).unwrap();
    let mut bytes: Vec<u8> = random(seed, len).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    // About the largest that a code and the scales within a block make of a scale of one.
    let d = match dtype {
        DType::Q8_0 | DType::IQ4_NL => 1.0 / 128.0,
        DType::Q4_0 | DType::MXFP4 => 1.0 / 8.0,
        DType::Q4_1 | DType::Q5_0 => 1.0 / 16.0,
        DType::Q5_1 => 1.0 / 32.0,
        DType::Q2_K => 1.0 / 45.0,
        DType::Q3_K => 1.0 / 128.0,
        DType::Q4_K => 1.0 / 512.0,
        DType::Q5_K => 1.0 / 1024.0,
        DType::Q6_K | DType::IQ4_XS => 1.0 / 4096.0,
        DType::IQ3_S => 1.0 / 512.0,
        DType::IQ3_XXS | DType::IQ2_S | DType::IQ2_XS | DType::IQ2_XXS => 1.0 / 256.0,
        DType::IQ1_M | DType::IQ1_S => 1.0 / 16.0,
        DType::TQ1_0 | DType::TQ2_0 => 1.0,
        other => panic!("{other} is no block type"),
    };
    bytes.chunks_exact_mut(dtype.block().bytes).for_each(|b| set_scales(dtype, b, f32_to_f16(d)));
    bytes
}

/// Gives a block's own scale and min, where it has one, a value; `MXFP4`, whose scales are powers of two, the nearest
/// below.
pub fn set_scales(dtype: DType, block: &mut [u8], half: u16) {
    let at: &[usize] = match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q6_K => &[208],
        DType::Q3_K => &[108],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 => &[64],
        DType::MXFP4 => {
            block[0] = (half >> 10 & 31) as u8 + 127 - 15;
            return;
        }
        DType::IQ1_M => {
            for (i, word) in block[48..56].chunks_exact_mut(2).enumerate() {
                let four = (half >> (4 * i) & 15) as u8;
                word[1] = word[1] & 15 | four << 4;
            }
            return;
        }
        _ => &[0],
    };
    at.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&half.to_le_bytes()));
}

/// The rule for activations of decoded rows of `k`: of 16 elements, whole multiples of the largest over 127.
pub fn rounded(x: &[f32], k: usize) -> Vec<f32> {
    let block = |x: &[f32]| {
        let a = x.iter().fold(0f32, |a, x| a.max(x.abs()));
        x.iter().map(|x| (x * (127.0 / a)).round_ties_even() * (a / 127.0)).collect::<Vec<_>>()
    };
    x.chunks(k).flat_map(|row| row.chunks(16)).flat_map(block).collect()
}

/// A buffer that holds these bytes.
pub fn put_bytes(device: &dyn Device, bytes: &[u8]) -> Buffer {
    let buffer = device.alloc("test", bytes.len()).unwrap();
    device.write(buffer.bytes(), bytes).unwrap();
    buffer
}

/// A buffer that holds these values from its first byte on.
pub fn put(device: &dyn Device, dtype: DType, values: &[f32]) -> Buffer {
    put_bytes(device, &encode(dtype, values))
}

/// A buffer of f32.
pub fn put_f32(device: &dyn Device, values: &[f32]) -> Buffer {
    put(device, DType::F32, values)
}

/// A buffer of i32.
pub fn put_i32(device: &dyn Device, values: &[i32]) -> Buffer {
    let buffer = device.alloc("test", 4 * values.len()).unwrap();
    device.write_i32(buffer.view(0, DType::I32, [values.len()]), values).unwrap();
    buffer
}

/// All of a buffer, as f32.
pub fn get(device: &dyn Device, buffer: &Buffer) -> Vec<f32> {
    device.read_f32(buffer.view(0, DType::F32, [buffer.len() / 4])).unwrap()
}

/// All of a buffer of a float or block type, widened.
pub fn get_as(device: &dyn Device, dtype: DType, buffer: &Buffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.len()];
    device.read(buffer.bytes(), &mut bytes).unwrap();
    let block = dtype.block();
    let mut out = vec![0.0; bytes.len() / block.bytes * block.elements];
    turbospark_tensor::widen_into(&bytes, dtype, &mut out);
    out
}

/// The bits, for comparisons that no rounding excuses.
pub fn bits(values: &[Vec<f32>]) -> Vec<Vec<u32>> {
    values.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
}

/// How far a sum of `k` products of numbers in [-1, 1] may lie from the exact one.
///
/// Each of the `k` roundings is at most 2^-24 of a partial sum, which is about sqrt(k) in size; they are
/// independent, so together about sqrt(k) times as large. Four times that, and a little for short sums.
pub fn sum_of(k: usize) -> f32 {
    4.0 * k as f32 * 2f32.powi(-24) + 1e-6
}

/// A float type from a number.
pub fn float(i: usize) -> DType {
    [DType::F32, DType::BF16, DType::F16][i % 3]
}

/// A type that caches take from a number, and the next length of heads that it allows.
pub fn cached(i: usize, n: usize) -> (DType, usize) {
    let dtype = if i % 4 == 3 { DType::Q8_0 } else { float(i % 4) };
    (dtype, n.next_multiple_of(dtype.block().elements))
}

/// A sequence's rows.
pub fn span(first_row: usize, rows: usize, start: usize, decode: bool, slot: usize) -> Span {
    Span { first_row, rows, start, decode, table: slot, state: slot, snapshots: Vec::new() }
}
