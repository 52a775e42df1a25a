//! Folders that NVIDIA's ModelOpt wrote: FP8 with a scale a tensor, and `NVFP4`.
//!
//! `NVFP4`: `w = e2m1(weight) * weight_scale * weight_scale_2` with two codes in a byte of `weight [out, in / 2]`, the first
//! in the low half, `weight_scale [out, in / 16]` in E4M3 and one `weight_scale_2`, which is multiplied. Other algorithms
//! have shapes or types of their own, and are refused by their tensors' names.

use turbospark_tensor::DType;

use super::{CACHE_SCALES, Object, Raw, compressed::nvfp4, fp8};
use crate::Result;

pub(super) fn read(raw: &mut Raw<'_>, quant: &Object) -> Result<()> {
    raw.drop_suffixes(&[".input_scale"]);
    raw.drop_suffixes(&CACHE_SCALES);
    for stem in raw.stems(".weight_scale_2") {
        let names = ["weight", "weight_scale", "weight_scale_2"].map(|part| format!("{stem}.{part}"));
        if raw.place(&names[0]).is_none_or(|codes| codes.dtype != DType::U8) {
            continue;
        }
        let [codes, scales, global] = [raw.take(&names[0])?, raw.take(&names[1])?, raw.take(&names[2])?];
        let scaled = nvfp4(&names, codes, scales, global, |scale, global| scale * global)?;
        raw.put(names[0].clone(), scaled)?;
    }
    fp8::read(raw, quant)
}
