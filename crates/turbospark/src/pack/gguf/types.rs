//! What a GGUF file is called, and its `general.file_type`.

use std::path::Path;

use turbospark_tensor::DType;

use super::tensors::Tensor;

/// The type that most weights of matrices have.
pub(super) fn most(tensors: &[Tensor<'_>]) -> DType {
    let mut sums: Vec<(DType, usize)> = Vec::new();
    for tensor in tensors.iter().filter(|t| t.shape.dims().len() > 1) {
        let n = tensor.shape.elements();
        match sums.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype) {
            Some((_, sum)) => *sum += n,
            None => sums.push((tensor.dtype, n)),
        }
    }
    // Patch and position embeddings are F32 whatever the rest is, and can be most of a small tower.
    let rest = sums.iter().filter(|(dtype, _)| *dtype != DType::F32).max_by_key(|(_, sum)| *sum);
    rest.map_or(DType::F32, |(dtype, _)| *dtype)
}

/// The type as file names have it. `mixed`: by this program's own mix, which is the public one.
pub(super) fn label(dtype: DType, mixed: bool) -> String {
    match dtype {
        DType::Q4_K | DType::Q5_K if mixed => format!("{dtype}_M"),
        _ => dtype.to_string(),
    }
}

/// The number that stands for a mix of which `dtype` is most.
pub(super) fn file_type(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q8_0 => 7,
        DType::Q5_0 => 8,
        DType::Q5_1 => 9,
        DType::Q2_K => 10,
        DType::Q3_K => 12,
        DType::Q4_K => 15,
        DType::Q5_K => 17,
        DType::Q6_K => 18,
        DType::IQ2_XXS => 19,
        DType::IQ2_XS => 20,
        DType::IQ3_XXS => 23,
        DType::IQ1_S => 24,
        DType::IQ4_NL => 25,
        DType::IQ3_S => 26,
        DType::IQ2_S => 28,
        DType::IQ4_XS => 30,
        DType::IQ1_M => 31,
        DType::BF16 => 32,
        DType::TQ1_0 => 36,
        DType::TQ2_0 => 37,
        DType::MXFP4 => 38,
        _ => 0,
    }
}

/// A model's name: its folder's, or its file's without the type at the end.
pub(super) fn name(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let whole = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_dir() {
        return whole.into_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let stem = stem.rsplit_once("-00001-of-").map_or(&*stem, |(stem, _)| stem);
    match stem.rsplit_once(['-', '.']) {
        Some((name, last)) if !name.is_empty() && is_type(last) => name.to_owned(),
        _ => stem.to_owned(),
    }
}

fn is_type(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    let bare = ["_XL", "_S", "_M", "_L"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(&word);
    let known = DType::BLOCKS.into_iter().chain([DType::F32, DType::F16, DType::BF16]);
    known.map(|dtype| dtype.to_string()).any(|name| name == word || name == bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_by_its_model() {
        for (path, expected) in [
            ("/models/Qwen3-VL-2B-Instruct-Q4_K_M.gguf", "Qwen3-VL-2B-Instruct"),
            ("tiny.q8_0.gguf", "tiny"),
            ("a-bf16-00001-of-00003.gguf", "a"),
            ("Qwen3.5-0.8B.gguf", "Qwen3.5-0.8B"),
            ("x/model.safetensors", "model"),
        ] {
            assert_eq!(name(Path::new(path)), expected);
        }
    }
}
