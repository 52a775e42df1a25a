//! The block formats against the public implementation.

use proptest::prelude::*;
use turbospark_tensor::{DType, quant::FORMATS, widen_into};

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

#[test]
fn random_blocks_give_the_bits_of_the_public_implementation() {
    // The digests are of `dequantize_row_*` of ggml 0.25.3 on the same 512 blocks, whose scales are finite.
    let want = [
        (DType::Q8_0, &[0][..], 0x6e21_eb0b_e014_f285),
        (DType::Q4_0, &[0], 0xe397_3b28_07fd_1cb2),
        (DType::Q4_K, &[0, 2], 0x9a97_5361_2e10_b593),
        (DType::Q5_K, &[0, 2], 0x68c3_38ee_609a_8ca5),
        (DType::Q6_K, &[208], 0xf20e_4ac3_b3c9_bd09),
    ];
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_some_weights(which in 0usize..5, bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        let dtype = FORMATS[which];
        let block = dtype.block();
        let blocks = bytes.len() / block.bytes;
        let mut out = vec![0.0; blocks * block.elements];
        widen_into(&bytes[..blocks * block.bytes], dtype, &mut out);
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
