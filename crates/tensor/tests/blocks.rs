//! The block formats against the public implementation.

use proptest::prelude::*;
use safetensors::SafeTensors;
use turbospark_tensor::{DType, quant::FORMATS, widen_into, widen_one};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// The same bits, or both NaN.
fn same(x: f32, y: f32) -> bool {
    x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()
}

#[test]
fn random_blocks_give_the_bits_of_the_public_implementation() {
    // The digests are those of the Python package gguf 0.19.0 (scripts/golden_blocks.py --digests) on the same 512
    // blocks, whose scales are finite; the library ggml 0.25.3 gives Q8_0, Q4_0, Q4_K, Q5_K and Q6_K the same. Every
    // entry of every grid is among them.
    let want = [
        (DType::Q8_0, &[0][..], 0x6e21_eb0b_e014_f285),
        (DType::Q4_0, &[0], 0xe397_3b28_07fd_1cb2),
        (DType::Q4_1, &[0, 2], 0x0242_628c_2ea9_9cde),
        (DType::Q5_0, &[0], 0xb69c_d5e6_a1bc_63dc),
        (DType::Q5_1, &[0, 2], 0x2337_17d3_4c07_68c6),
        (DType::IQ4_NL, &[0], 0xd8df_ae13_950b_7e66),
        (DType::MXFP4, &[], 0x2087_8492_bbfa_ee50),
        (DType::Q2_K, &[80, 82], 0x06aa_14ad_cf68_3a71),
        (DType::Q3_K, &[108], 0x5e8b_8fb3_e9e2_9301),
        (DType::Q4_K, &[0, 2], 0x9a97_5361_2e10_b593),
        (DType::Q5_K, &[0, 2], 0x68c3_38ee_609a_8ca5),
        (DType::Q6_K, &[208], 0xf20e_4ac3_b3c9_bd09),
        (DType::IQ4_XS, &[0], 0xd2e5_5b59_316f_deb1),
        (DType::IQ3_S, &[0], 0x7da7_857b_38a8_eced),
        (DType::IQ3_XXS, &[0], 0x5c3d_51c4_82cb_8fc7),
        (DType::IQ2_S, &[0], 0xa6fd_ba8b_5ac2_2679),
        (DType::IQ2_XS, &[0], 0xd83f_c474_397d_f72e),
        (DType::IQ2_XXS, &[0], 0x1da6_5a79_b2c8_421d),
        (DType::IQ1_S, &[0], 0xb965_b747_a1a2_ba26),
        (DType::IQ1_M, &[54], 0x5afa_1a2d_e8f4_32a6),
        (DType::TQ1_0, &[52], 0x0a81_548a_5c20_0bb2),
        (DType::TQ2_0, &[64], 0x891d_c18c_fcb5_70f9),
    ];
    assert_eq!(want.len(), DType::BLOCKS.len());
    for (dtype, scales, digest) in want {
        let (block, mut random) = (dtype.block(), Random(7));
        let mut bytes: Vec<u8> = (0..512 * block.bytes).map(|_| (random.next() >> 56) as u8).collect();
        for b in bytes.chunks_exact_mut(block.bytes) {
            scales.iter().for_each(|&at| b[at + 1] &= 0xbf); // below the exponents of infinity and NaN
        }
        let mut out = vec![0.0; 512 * block.elements];
        widen_into(&bytes, dtype, &mut out);
        assert_eq!(fnv1a(out.iter().flat_map(|x| x.to_le_bytes())), digest, "{dtype}");
    }
}

#[test]
fn golden_blocks_give_the_bits_of_the_public_implementation() {
    let file = include_bytes!("data/blocks.safetensors");
    let golden = SafeTensors::deserialize(file).unwrap();
    assert_eq!(golden.len(), 2 * DType::BLOCKS.len());
    for dtype in DType::BLOCKS {
        let (blocks, values) = (format!("{dtype}.blocks"), format!("{dtype}.values"));
        let (blocks, values) = (golden.tensor(&blocks).unwrap(), golden.tensor(&values).unwrap());
        let block = dtype.block();
        assert_eq!((blocks.shape()[1], values.shape()[1]), (block.bytes, block.elements), "{dtype}");
        let mut out = vec![0.0; values.shape()[0] * block.elements];
        widen_into(blocks.data(), dtype, &mut out);
        for (i, (got, want)) in out.iter().zip(values.data().chunks_exact(4)).enumerate() {
            let want = f32::from_le_bytes(want.try_into().unwrap());
            let (nth, i) = (i / block.elements, i % block.elements);
            assert!(same(*got, want), "{dtype}, block {nth}, element {i}: {got:e}, not {want:e}");
        }
    }
}

#[test]
fn a_length_that_is_not_the_blocks_is_refused() {
    let refused = |bytes: usize, dtype: DType, elements: usize| {
        std::panic::catch_unwind(|| widen_into(&vec![0; bytes], dtype, &mut vec![0.0; elements])).is_err()
    };
    for dtype in DType::BLOCKS {
        let (b, n) = (dtype.block().bytes, dtype.block().elements);
        assert!(!refused(0, dtype, 0) && !refused(2 * b, dtype, 2 * n), "{dtype}");
        for (bytes, elements) in
            [(b - 1, n), (b + 1, n), (b, n - 1), (b, n + 1), (2 * b, n), (b, 2 * n), (0, 1), (1, 0)]
        {
            assert!(refused(bytes, dtype, elements), "{dtype}: {bytes} bytes for {elements} elements");
        }
    }
}

#[test]
fn byte_floats_are_widened_one_by_one_and_together() {
    let bytes: Vec<u8> = (0..=255).collect();
    for (dtype, one) in [(DType::F8_E4M3, 0x38), (DType::F8_E8M0, 127)] {
        let mut out = vec![0.0; 256];
        widen_into(&bytes, dtype, &mut out);
        assert!((0..256).all(|i| out[i].to_bits() == widen_one(&bytes, dtype, i).to_bits()), "{dtype}");
        assert_eq!(out[one], 1.0);
        assert!(!dtype.is_float() && !dtype.is_weight());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_some_weights(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        for dtype in DType::BLOCKS.into_iter().chain([DType::F8_E4M3, DType::F8_E8M0]) {
            let block = dtype.block();
            let blocks = bytes.len() / block.bytes;
            let mut out = vec![0.0; blocks * block.elements];
            widen_into(&bytes[..blocks * block.bytes], dtype, &mut out);
            // Each block on its own gives the same.
            let mut alone = vec![0.0; block.elements];
            for (b, together) in bytes.chunks_exact(block.bytes).zip(out.chunks_exact(block.elements)) {
                widen_into(b, dtype, &mut alone);
                prop_assert!(together.iter().zip(&alone).all(|(&x, &y)| same(x, y)), "{dtype}");
            }
        }
    }
}

#[test]
fn sizes_are_those_of_whole_blocks() {
    assert_eq!(DType::Q4_K.bytes(512), Some(288));
    assert_eq!(DType::Q8_0.bytes(33), None);
    assert_eq!(DType::Q8_0.bytes(usize::MAX - 31), None);
    assert!(FORMATS.iter().all(|d| d.is_weight() && d.is_block() && !d.is_float()));
    assert!(DType::BF16.is_weight() && !DType::BF16.is_block() && !DType::I32.is_weight());
}
