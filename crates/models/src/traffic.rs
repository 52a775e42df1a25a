//! How many bytes of weights a pass reads: what decoding is bound by.

use crate::blocks::mlp::{DenseWeights, Mlp, ResidentExperts, Routed};
use crate::trunk::{Embedding, Head, Mixer, Trunk};
use crate::weight::{Matrix, Weight};

impl Trunk {
    /// Bytes of weights that one pass over `rows` decoded rows reads, each tensor once.
    ///
    /// The embedding counts as `rows` rows and once more, whole, where it is the head too. Of `E` experts with
    /// `k` a row, `E * (1 - (1 - k / E)^rows)` count: as many as differ on average where each row draws its own.
    pub fn weight_bytes(&self, rows: usize) -> f64 {
        let head = match &self.lm_head {
            Head::Whole(weight) => weight.bytes(),
            Head::Shards(shards) => shards.iter().map(|(_, weight, _)| weight.bytes()).sum(),
        };
        let table = match &self.embed {
            Embedding::Table(table) => table.bytes(),
            Embedding::Streamed(_) => head,
        };
        let embed = table / self.config.vocab_size as f64 * rows as f64;
        let layers: f64 = self
            .layers
            .iter()
            .map(|layer| {
                let mixer: f64 = match &layer.mixer {
                    Mixer::Attention(w) => {
                        let norms = w.head_norms.iter().flatten().map(|n| n.weight.bytes()).sum::<f64>();
                        norms + [&w.q_proj, &w.k_proj, &w.v_proj, &w.o_proj].into_iter().map(Matrix::bytes).sum::<f64>()
                    }
                    Mixer::Delta(w) => {
                        let products = [&w.in_proj_qkv, &w.in_proj_z, &w.in_proj_b, &w.in_proj_a, &w.out_proj];
                        let rest = [&w.conv, &w.a_log, &w.dt_bias, &w.norm];
                        let products = products.into_iter().map(Matrix::bytes).sum::<f64>();
                        products + rest.into_iter().map(Weight::bytes).sum::<f64>()
                    }
                };
                let norms = layer.input_norm.weight.bytes() + layer.post_attention_norm.weight.bytes();
                mixer + norms + self.mlp_bytes(&layer.mlp, rows)
            })
            .sum();
        embed + layers + self.norm.weight.bytes() + head
    }

    fn mlp_bytes(&self, mlp: &Mlp, rows: usize) -> f64 {
        let w = match mlp {
            Mlp::Dense(w) => return w.bytes(),
            Mlp::Moe(w) => w,
        };
        let per_row = self.config.moe.as_ref().map_or(0.0, |m| m.num_experts_per_tok as f64 / m.num_experts as f64);
        let used = 1.0 - (1.0 - per_row).powi(rows.try_into().unwrap_or(i32::MAX));
        let all = match &w.experts {
            Routed::Pooled(experts) => experts.bytes(),
            Routed::Awaited => 0.0,
            Routed::Resident(experts) => experts.bytes(),
        };
        let shared = w.shared.as_ref().map_or(0.0, |(w, gate)| w.bytes() + gate.bytes());
        w.router.bytes() + used * all + shared
    }
}

impl ResidentExperts {
    fn bytes(&self) -> f64 {
        match self {
            ResidentExperts::Fused { gate_up, down, .. } => gate_up.bytes() + down.bytes(),
            ResidentExperts::Stacked { gate, up, down } => gate.bytes() + up.bytes() + down.bytes(),
            ResidentExperts::Split(each) => each.iter().map(DenseWeights::bytes).sum(),
        }
    }
}

impl DenseWeights {
    fn bytes(&self) -> f64 {
        self.gate.bytes() + self.up.bytes() + self.down.bytes()
    }
}

impl Matrix {
    fn bytes(&self) -> f64 {
        self.tensors().map(Weight::bytes).sum()
    }
}

impl Weight {
    fn bytes(&self) -> f64 {
        let elements = self.shape().elements();
        self.dtype().bytes(elements).unwrap_or(0) as f64 // a weight is whole blocks
    }
}
