//! Quantising weights as they are loaded: which tensor takes which block format.

use std::fmt;
use std::str::FromStr;

use turbospark_tensor::quant::{QuantError, requantise};
use turbospark_tensor::{DType, Shape, widen_into};

/// Block formats for the linear weights of the trunk.
///
/// Attention, MLP, expert and DeltaNet projections take the format itself; the head (with it a tied embedding), and
/// under `q4_k` and `q5_k` what public mixes give more bits to, `v_proj`, `down_proj` and DeltaNet's `in_proj_qkv` of
/// some layers, take `Q6_K`. Those layers are the first and last eighth and every third between. A tensor whose rows
/// are no whole blocks of 256 takes `Q8_0`; one whose rows are no whole blocks of 32 stays as it is stored, and so do
/// norms, biases, convolutions, the router, gates of one value a head or a row, and the vision tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the formats' public names")]
pub enum Quant {
    /// 8.5 bits a weight.
    Q8_0,
    /// 4.5 bits a weight, one scale for 32.
    Q4_0,
    /// 4.5 bits a weight, scales and mins; with the public mix of `Q6_K` about 4.8.
    Q4_K,
    /// 5.5 bits a weight, scales and mins; with the public mix of `Q6_K` about 5.7.
    Q5_K,
    /// 6.6 bits a weight.
    Q6_K,
}

/// A name that is no [`Quant`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format {0:?}; weights are quantised to q8_0, q6_k, q5_k, q4_k or q4_0")]
pub struct UnknownQuant(String);

impl FromStr for Quant {
    type Err = UnknownQuant;

    /// `q4_k`, `Q4_K`, and the public names of the mixes, `q4_k_m` and `q5_k_m`.
    fn from_str(name: &str) -> Result<Self, UnknownQuant> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "q8_0" => Quant::Q8_0,
            "q4_0" => Quant::Q4_0,
            "q4_k" | "q4_k_m" => Quant::Q4_K,
            "q5_k" | "q5_k_m" => Quant::Q5_K,
            "q6_k" => Quant::Q6_K,
            _ => return Err(UnknownQuant(name.to_owned())),
        })
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Quant::Q8_0 => "q8_0",
            Quant::Q4_0 => "q4_0",
            Quant::Q4_K => "q4_k",
            Quant::Q5_K => "q5_k",
            Quant::Q6_K => "q6_k",
        })
    }
}

/// What a quantised tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A projection, or an embedding that is not the head too.
    Linear,
    /// `v_proj`, `down_proj` or `in_proj_qkv` of layer `layer` of `layers`.
    Sensitive {
        /// Which.
        layer: usize,
        /// Of how many.
        layers: usize,
    },
    /// The head.
    Head,
}

impl Quant {
    /// All of them, largest first.
    pub const ALL: [Quant; 5] = [Quant::Q8_0, Quant::Q6_K, Quant::Q5_K, Quant::Q4_K, Quant::Q4_0];

    /// The format of most weights.
    pub fn dtype(self) -> DType {
        match self {
            Quant::Q8_0 => DType::Q8_0,
            Quant::Q4_0 => DType::Q4_0,
            Quant::Q4_K => DType::Q4_K,
            Quant::Q5_K => DType::Q5_K,
            Quant::Q6_K => DType::Q6_K,
        }
    }

    /// The format of a tensor with rows of `row` elements; `None` where it stays as it is stored.
    pub fn of(self, role: Role, row: usize) -> Option<DType> {
        let mixed = matches!(self, Quant::Q4_K | Quant::Q5_K);
        let wanted = match role {
            Role::Head if self != Quant::Q8_0 => DType::Q6_K,
            Role::Sensitive { layer, layers } if mixed && more_bits(layer, layers) => DType::Q6_K,
            _ => self.dtype(),
        };
        [wanted, DType::Q8_0].into_iter().find(|d| row > 0 && row.is_multiple_of(d.block().elements))
    }
}

/// The layers to which the public `_M` mixes give more bits.
fn more_bits(layer: usize, layers: usize) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

/// Stored `[.., a, b]` weights as `[.., b, a]` in blocks: those of rows that are stored as columns.
pub(crate) fn requantise_transposed(
    bytes: &[u8],
    from: DType,
    shape: Shape,
    dtype: DType,
    threads: usize,
    out: &mut [u8],
) -> Result<(), QuantError> {
    let &[.., a, b] = shape.dims() else { unreachable!("a matrix") };
    let size = from.bytes(a * b).expect("a plain type");
    let target = dtype.bytes(a * b).expect("rows of whole blocks");
    let (mut wide, mut turned) = (vec![0f32; a * b], vec![0f32; a * b]);
    for (bytes, out) in bytes.chunks_exact(size.max(1)).zip(out.chunks_exact_mut(target.max(1))) {
        widen_into(bytes, from, &mut wide);
        // In tiles, so that both sides stay in the cache.
        const TILE: usize = 32;
        for (r0, c0) in (0..a).step_by(TILE).flat_map(|r| (0..b).step_by(TILE).map(move |c| (r, c))) {
            for r in r0..a.min(r0 + TILE) {
                for c in c0..b.min(c0 + TILE) {
                    turned[c * a + r] = wide[r * b + c];
                }
            }
        }
        requantise(bytemuck::cast_slice(&turned), DType::F32, dtype, threads, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_told_the_list() {
        for q in Quant::ALL {
            assert_eq!(q.to_string().parse(), Ok(q));
        }
        assert_eq!("Q4_K_M".parse(), Ok(Quant::Q4_K));
        let said = "int4".parse::<Quant>().unwrap_err().to_string();
        assert!(said.contains("\"int4\"") && said.contains("q8_0, q6_k, q5_k, q4_k or q4_0"), "{said}");
    }

    #[test]
    fn the_mix_is_the_public_one() {
        let value = |q: Quant, layer| q.of(Role::Sensitive { layer, layers: 28 }, 2048);
        let six: Vec<usize> = (0..28).filter(|&i| value(Quant::Q4_K, i) == Some(DType::Q6_K)).collect();
        assert_eq!(six, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
        assert_eq!(value(Quant::Q4_K, 3), Some(DType::Q4_K));
        assert_eq!(value(Quant::Q4_0, 0), Some(DType::Q4_0));
        assert_eq!(Quant::Q4_0.of(Role::Head, 2048), Some(DType::Q6_K));
        assert_eq!(Quant::Q8_0.of(Role::Head, 2048), Some(DType::Q8_0));
        assert_eq!(Quant::Q4_K.of(Role::Linear, 1152), Some(DType::Q8_0));
        assert_eq!(Quant::Q4_0.of(Role::Linear, 1152), Some(DType::Q4_0));
        assert_eq!(Quant::Q4_K.of(Role::Linear, 40), None);
    }

    #[test]
    fn columns_become_rows_of_blocks() {
        let shape = Shape::from([2, 64, 3]);
        let x: Vec<f32> = (0..2 * 64 * 3).map(|i| (i as f32).sin()).collect();
        let mut out = vec![0; DType::Q8_0.bytes(x.len()).unwrap()];
        requantise_transposed(bytemuck::cast_slice(&x), DType::F32, shape, DType::Q8_0, 2, &mut out).unwrap();
        let mut back = vec![0.0; x.len()];
        widen_into(&out, DType::Q8_0, &mut back);
        for (e, (i, o)) in (0..2).flat_map(|e| (0..64).flat_map(move |i| (0..3).map(move |o| (e, (i, o))))) {
            let (want, got) = (x[(e * 64 + i) * 3 + o], back[(e * 3 + o) * 64 + i]);
            assert!((want - got).abs() < 0.005, "{e} {i} {o}: {got}, expected {want}");
        }
    }
}
