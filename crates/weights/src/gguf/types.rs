//! The numbers of element types.

use turbospark_tensor::DType;

use super::nvfp4;

/// An element type by its number in a file.
pub(super) struct GgmlType {
    pub(super) name: String,
    /// The type, if this build reads it.
    pub(super) dtype: Option<DType>,
    /// Elements and bytes of a block, if anyone knows.
    pub(super) block: Option<(u64, u64)>,
}

impl GgmlType {
    pub(super) fn of(number: u32) -> Self {
        if let Some(dtype) = dtype(number) {
            let block = dtype.block();
            let block = Some((block.elements as u64, block.bytes as u64));
            return GgmlType { name: dtype.to_string(), dtype: Some(dtype), block };
        }
        let (name, block) = match number {
            9 => ("Q8_1", Some((32, 40))),
            15 => ("Q8_K", Some((256, 292))),
            25 => ("I16", Some((1, 2))),
            28 => ("F64", Some((1, 8))),
            40 => (nvfp4::NAME, Some(nvfp4::BLOCK)),
            41 => ("Q1_0", Some((128, 18))),
            // Types that old files have and that no program reads any more.
            4 => ("Q4_2", None),
            5 => ("Q4_3", None),
            31 => ("Q4_0_4_4", None),
            32 => ("Q4_0_4_8", None),
            33 => ("Q4_0_8_8", None),
            36 => ("IQ4_NL_4_4", None),
            37 => ("IQ4_NL_4_8", None),
            38 => ("IQ4_NL_8_8", None),
            other => return GgmlType { name: format!("ggml type {other}"), dtype: None, block: None },
        };
        GgmlType { name: name.to_owned(), dtype: None, block }
    }
}

/// The number of a type; `None` for those that only other formats have.
pub(super) fn number(dtype: DType) -> Option<u32> {
    (0..HIGHEST).find(|&number| self::dtype(number) == Some(dtype))
}

/// Above all numbers that are known.
const HIGHEST: u32 = 64;

fn dtype(number: u32) -> Option<DType> {
    Some(match number {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2_K,
        11 => DType::Q3_K,
        12 => DType::Q4_K,
        13 => DType::Q5_K,
        14 => DType::Q6_K,
        16 => DType::IQ2_XXS,
        17 => DType::IQ2_XS,
        18 => DType::IQ3_XXS,
        19 => DType::IQ1_S,
        20 => DType::IQ4_NL,
        21 => DType::IQ3_S,
        22 => DType::IQ2_S,
        23 => DType::IQ4_XS,
        24 => DType::I8,
        26 => DType::I32,
        27 => DType::I64,
        29 => DType::IQ1_M,
        30 => DType::BF16,
        34 => DType::TQ1_0,
        35 => DType::TQ2_0,
        39 => DType::MXFP4,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_type_has_one_number() {
        let known: Vec<_> = (0..HIGHEST).filter_map(dtype).collect();
        for block in DType::BLOCKS {
            assert_eq!(known.iter().filter(|&&d| d == block).count(), 1, "{block}");
            assert_eq!(number(block).and_then(dtype), Some(block));
        }
    }
}
