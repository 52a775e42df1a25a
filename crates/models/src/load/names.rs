//! The names under which a model's tensors are published.

use turbospark_device::WeightLayout;
use turbospark_tensor::mutant::{Mutant, active};
use turbospark_tensor::{DType, Shape};
use turbospark_weights::Linear;

use super::{Loader, Planned};
use crate::blocks::attention::AttentionWeights;
use crate::blocks::delta::DeltaWeights;
use crate::blocks::mlp::{DenseWeights, Mlp, MoeWeights, ResidentExperts, Routed};
use crate::blocks::vision_block::{BlockWeights, MergerWeights, NormWeights};
use crate::config::{Config, DeltaConfig, LayerKind, MlpKind, MoeConfig, TextConfig, VisionConfig};
use crate::quant::Role;
use crate::rope::TextRope;
use crate::stream::{ExpertReads, Part, StreamedTable};
use crate::trunk::{Embedding, Head, Layer, Mixer, Norm, Trunk};
use crate::vision_tower::VisionTower;
use crate::weight::{Affine, Matrix};
use crate::{ModelError, Result};

impl Loader<'_> {
    fn affine(&mut self, name: &str, out: usize, inner: usize) -> Result<Affine> {
        Ok(Affine {
            weight: self.linear_as(&format!("{name}.weight"), &[out, inner], self.how.vision_quant, Role::Linear)?,
            bias: self.take(&format!("{name}.bias"), &[out])?,
        })
    }

    fn layer_norm(&mut self, name: &str, n: usize) -> Result<NormWeights> {
        Ok(NormWeights {
            weight: self.take(&format!("{name}.weight"), &[n])?,
            bias: self.take(&format!("{name}.bias"), &[n])?,
        })
    }

    pub(super) fn tower(&mut self, c: &VisionConfig) -> Result<VisionTower> {
        const V: &str = "model.visual";
        let (d, side) = (c.hidden_size, c.patch_size);
        let kernel = [d, c.in_channels, c.temporal_patch_size, side, side];
        let proj = self.take(&format!("{V}.patch_embed.proj.weight"), &kernel)?;
        let patch_embed = Affine {
            weight: Matrix::Plain(proj.reshaped(&[d, c.patch_dim()])),
            bias: self.take(&format!("{V}.patch_embed.proj.bias"), &[d])?,
        };
        let pos_embed = self.take(&format!("{V}.pos_embed.weight"), &[c.num_position_embeddings, d])?;
        let blocks = (0..c.depth)
            .map(|j| {
                let b = format!("{V}.blocks.{j}");
                Ok(BlockWeights {
                    norm1: self.layer_norm(&format!("{b}.norm1"), d)?,
                    qkv: Affine {
                        weight: self.in_parts(&format!("{b}.attn.qkv.weight"), &[3 * d, d], d)?,
                        bias: self.take(&format!("{b}.attn.qkv.bias"), &[3 * d])?,
                    },
                    proj: self.affine(&format!("{b}.attn.proj"), d, d)?,
                    norm2: self.layer_norm(&format!("{b}.norm2"), d)?,
                    fc1: self.affine(&format!("{b}.mlp.linear_fc1"), c.intermediate_size, d)?,
                    fc2: self.affine(&format!("{b}.mlp.linear_fc2"), d, c.intermediate_size)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let merger = self.merger(&format!("{V}.merger"), c, false)?;
        let deepstack_mergers = (0..c.deepstack_visual_indexes.len())
            .map(|k| self.merger(&format!("{V}.deepstack_merger_list.{k}"), c, true))
            .collect::<Result<Vec<_>>>()?;
        let (ring, units) = Default::default();
        Ok(VisionTower { config: c.clone(), patch_embed, pos_embed, blocks, merger, deepstack_mergers, ring, units })
    }

    fn merger(&mut self, name: &str, c: &VisionConfig, postshuffle_norm: bool) -> Result<MergerWeights> {
        let wide = c.merge_unit() * c.hidden_size;
        Ok(MergerWeights {
            norm: self.layer_norm(&format!("{name}.norm"), if postshuffle_norm { wide } else { c.hidden_size })?,
            fc1: self.affine(&format!("{name}.linear_fc1"), wide, wide)?,
            fc2: self.affine(&format!("{name}.linear_fc2"), c.out_hidden_size, wide)?,
            postshuffle_norm,
        })
    }

    pub(super) fn trunk(&mut self, config: &Config, deepstack_blocks: Vec<usize>) -> Result<Trunk> {
        let c = &config.text;
        // Text-only exports leave `language_model` out.
        let nested = "model.language_model";
        let root = if self.claims.contains(&format!("{nested}.embed_tokens.weight")) { nested } else { "model" };
        let held = self.claims.checkpoint().conventions().norms_hold_one && !active(Mutant::NormShiftedTwice);
        let one_plus = config.family.is_qwen35() && !held;
        let table = [c.vocab_size, c.hidden_size];
        let tied = config.tie_word_embeddings;
        let role = if tied { Role::Head } else { Role::Linear };
        let name = format!("{root}.embed_tokens.weight");
        let streamed = self.streamed.as_ref().is_some_and(|s| !s.head.is_empty());
        let embed = match streamed {
            true => Embedding::Streamed(self.streamed_table(&name, &table)?),
            false => Embedding::Table(self.linear(&name, &table, role)?),
        };
        let layers = (0..c.num_hidden_layers)
            .map(|i| self.layer(&format!("{root}.layers.{i}"), c, i, one_plus))
            .collect::<Result<Vec<_>>>()?;
        let norm = self.norm(&format!("{root}.norm.weight"), c.hidden_size, c, one_plus)?;
        let lm_head = match &embed {
            Embedding::Streamed(_) => Head::Shards(self.head_shards(tied, &table)?),
            Embedding::Table(embed) if tied => Head::Whole(embed.clone()),
            Embedding::Table(_) => Head::Whole(self.linear("lm_head.weight", &table, Role::Head)?),
        };
        if tied {
            self.head_twice(&name, &table)?;
        }
        let rope = TextRope::new(&c.rope);
        let family = config.family;
        let (ring, units) = Default::default();
        Ok(Trunk { family, config: c.clone(), embed, layers, norm, lm_head, rope, deepstack_blocks, ring, units })
    }

    /// The embedding, left on the disk.
    fn streamed_table(&mut self, name: &str, dims: &[usize]) -> Result<StreamedTable> {
        let linear = self.claims.take_linear(name, Shape::new(dims))?;
        let counters = self.streamed.as_ref().map(|s| s.counters.clone()).unwrap_or_default();
        let table = StreamedTable::new(&linear, self.claims.checkpoint(), counters)?;
        Ok(table.expect("a head that can be cut can be read by rows"))
    }

    /// The head in parts that go through the ring.
    fn head_shards(&mut self, tied: bool, dims: &[usize]) -> Result<Vec<(usize, Matrix, usize)>> {
        if !tied {
            self.claims.take_linear("lm_head.weight", Shape::new(dims))?;
        }
        let parts = self.streamed.as_ref().map(|s| s.head.clone()).unwrap_or_default();
        let bring = |(first, part, unit)| Ok((first, self.bring_linear("lm_head.weight", &part)?, unit));
        parts.into_iter().map(bring).collect()
    }

    /// A head that is stored although it is the embedding: some writers copy it. Another one is refused, for programs
    /// differ in which of the two they use.
    fn head_twice(&mut self, embedding: &str, dims: &[usize]) -> Result<()> {
        const HEAD: &str = "lm_head.weight";
        if !self.claims.contains(HEAD) {
            return Ok(());
        }
        let (table, head) = (
            self.claims.take_linear(embedding, Shape::new(dims))?,
            self.claims.take_linear(HEAD, Shape::new(dims)).map_err(|_| ModelError::TiedHead)?,
        );
        match table.same_bytes(&head, self.claims.checkpoint())? {
            true => Ok(()),
            false => Err(ModelError::TiedHead),
        }
    }

    fn norm(&mut self, name: &str, n: usize, c: &TextConfig, one_plus: bool) -> Result<Norm> {
        Ok(Norm { weight: self.take(name, &[n])?, one_plus, eps: c.rms_norm_eps })
    }

    fn layer(&mut self, name: &str, c: &TextConfig, i: usize, one_plus: bool) -> Result<Layer> {
        let input_norm = self.norm(&format!("{name}.input_layernorm.weight"), c.hidden_size, c, one_plus)?;
        let sensitive = Role::Sensitive { layer: i, layers: c.num_hidden_layers };
        let mixer = match (c.layer_kinds[i], &c.delta) {
            (LayerKind::LinearAttention, Some(d)) => {
                Mixer::Delta(self.delta(&format!("{name}.linear_attn"), c, d, sensitive)?)
            }
            _ => Mixer::Attention(self.attention(&format!("{name}.self_attn"), c, one_plus, sensitive)?),
        };
        let after = format!("{name}.post_attention_layernorm.weight");
        let post_attention_norm = self.norm(&after, c.hidden_size, c, one_plus)?;
        let mlp = match (c.mlp_kinds[i], &c.moe) {
            (MlpKind::Moe, Some(m)) => Mlp::Moe(self.moe(&format!("{name}.mlp"), c.hidden_size, m, sensitive)?),
            _ => Mlp::Dense(self.dense(&format!("{name}.mlp"), c.intermediate_size, c.hidden_size, sensitive)?),
        };
        Ok(Layer { input_norm, mixer, post_attention_norm, mlp })
    }

    fn attention(&mut self, name: &str, c: &TextConfig, one_plus: bool, sensitive: Role) -> Result<AttentionWeights> {
        let (d, h) = (c.head_dim, c.hidden_size);
        let (queries, keys) = (c.num_attention_heads * d, c.num_key_value_heads * d);
        let gated = c.attention_output_gate;
        let head_norms = match c.head_norms {
            true => Some([
                self.norm(&format!("{name}.q_norm.weight"), d, c, one_plus)?,
                self.norm(&format!("{name}.k_norm.weight"), d, c, one_plus)?,
            ]),
            false => None,
        };
        Ok(AttentionWeights {
            q_proj: self.linear(
                &format!("{name}.q_proj.weight"),
                &[queries * (1 + gated as usize), h],
                Role::Linear,
            )?,
            k_proj: self.linear(&format!("{name}.k_proj.weight"), &[keys, h], Role::Linear)?,
            v_proj: self.linear(&format!("{name}.v_proj.weight"), &[keys, h], sensitive)?,
            o_proj: self.linear(&format!("{name}.o_proj.weight"), &[h, queries], Role::Linear)?,
            head_norms,
            head_dim: d,
            gated,
        })
    }

    fn delta(&mut self, name: &str, c: &TextConfig, d: &DeltaConfig, sensitive: Role) -> Result<DeltaWeights> {
        let (h, heads, channels) = (c.hidden_size, d.num_value_heads, d.conv_channels());
        let conv = self.take(&format!("{name}.conv1d.weight"), &[channels, 1, d.conv_kernel])?;
        let conventions = self.claims.checkpoint().conventions();
        Ok(DeltaWeights {
            in_proj_qkv: self.linear(&format!("{name}.in_proj_qkv.weight"), &[channels, h], sensitive)?,
            in_proj_z: self.linear(&format!("{name}.in_proj_z.weight"), &[d.value_dim(), h], Role::Linear)?,
            in_proj_b: self.stored(&format!("{name}.in_proj_b.weight"), &[heads, h])?,
            in_proj_a: self.stored(&format!("{name}.in_proj_a.weight"), &[heads, h])?,
            conv: conv.reshaped(&[channels, d.conv_kernel]),
            a_log: self.take(&format!("{name}.A_log"), &[heads])?,
            is_rate: conventions.decay_is_negated_exp,
            dt_bias: self.take(&format!("{name}.dt_bias"), &[heads])?,
            norm: self.take(&format!("{name}.norm.weight"), &[d.value_head_dim])?,
            out_proj: self.linear(&format!("{name}.out_proj.weight"), &[h, d.value_dim()], Role::Linear)?,
            tiled: conventions.value_heads_tiled && !active(Mutant::TiledHeadsIgnored),
            eps: c.rms_norm_eps,
            config: *d,
        })
    }

    fn dense(&mut self, name: &str, width: usize, hidden: usize, sensitive: Role) -> Result<DenseWeights> {
        Ok(DenseWeights {
            gate: self.linear(&format!("{name}.gate_proj.weight"), &[width, hidden], Role::Linear)?,
            up: self.linear(&format!("{name}.up_proj.weight"), &[width, hidden], Role::Linear)?,
            down: self.linear(&format!("{name}.down_proj.weight"), &[hidden, width], sensitive)?,
        })
    }

    fn moe(&mut self, name: &str, hidden: usize, m: &MoeConfig, sensitive: Role) -> Result<MoeWeights> {
        let shared = match m.shared_expert_intermediate_size {
            Some(width) => Some((
                self.dense(&format!("{name}.shared_expert"), width, hidden, sensitive)?,
                self.stored(&format!("{name}.shared_expert_gate.weight"), &[1, hidden])?,
            )),
            None => None,
        };
        Ok(MoeWeights {
            router: self.stored(&format!("{name}.gate.weight"), &[m.num_experts, hidden])?,
            experts: self.routed(&format!("{name}.experts"), hidden, m, sensitive)?,
            width: m.moe_intermediate_size,
            norm_topk_prob: m.norm_topk_prob,
            shared,
        })
    }

    /// The experts of a layer, resident or on their way to a pool.
    fn routed(&mut self, name: &str, hidden: usize, m: &MoeConfig, sensitive: Role) -> Result<Routed> {
        let pooled = self.streamed.as_ref().is_some_and(|s| s.expert_slots[0] > 0);
        if !pooled {
            return Ok(Routed::Resident(self.experts(name, hidden, m, sensitive)?));
        }
        // Listed as they would be brought, and then read one by one.
        let mut listed = self.plan.replace(Vec::new());
        let planned = self.experts(name, hidden, m, sensitive);
        std::mem::swap(&mut listed, &mut self.plan);
        planned?;
        let tensors = listed.unwrap_or_default();
        let width = m.moe_intermediate_size;
        let find = |part: &str| tensors.iter().find(|t| t.name == format!("{name}.{part}"));
        let part = |tensor: &Planned, first: usize, rows: usize, all: usize| Part {
            source: tensor.source.clone(),
            first,
            rows,
            all,
        };
        let each = (0..m.num_experts).map(|e| {
            let own = |p: &str| find(&format!("{e}.{p}.weight"));
            let stacked = |p: &str| find(&format!("{p}.weight"));
            let fused = find("gate_up_proj").zip(find("down_proj"));
            if let Some((gate_up, down)) = fused {
                let layout = if gate_up.in_out { WeightLayout::InOut } else { WeightLayout::OutIn };
                let parts = [
                    part(gate_up, 0, width, 2 * width),
                    part(gate_up, width, width, 2 * width),
                    part(down, 0, hidden, hidden),
                ];
                return ExpertReads::new(e, parts, layout);
            }
            let one = |p: &str, rows: usize| {
                let tensor = stacked(p).or(own(p)).expect("claimed a moment ago");
                part(tensor, 0, rows, rows)
            };
            let parts = [one("gate_proj", width), one("up_proj", width), one("down_proj", hidden)];
            ExpertReads::new(e, parts, WeightLayout::OutIn)
        });
        let each = each.collect();
        self.pooled.push(each);
        Ok(Routed::Awaited)
    }

    /// The four layouts in which files hold experts, told apart by name and shape: fused either way round, stacked, and
    /// one by one.
    fn experts(&mut self, name: &str, hidden: usize, m: &MoeConfig, sensitive: Role) -> Result<ResidentExperts> {
        let (experts, width) = (m.num_experts, m.moe_intermediate_size);
        let (fused, stacked) = (format!("{name}.gate_up_proj"), format!("{name}.gate_proj.weight"));
        if self.claims.contains(&stacked) {
            let inward = [experts, width, hidden];
            return Ok(ResidentExperts::Stacked {
                gate: self.linear(&stacked, &inward, Role::Linear)?,
                up: self.linear(&format!("{name}.up_proj.weight"), &inward, Role::Linear)?,
                down: self.linear(&format!("{name}.down_proj.weight"), &[experts, hidden, width], sensitive)?,
            });
        }
        if !self.claims.contains(&fused) {
            let each = (0..experts).map(|e| self.dense(&format!("{name}.{e}"), width, hidden, sensitive));
            return Ok(ResidentExperts::Split(each.collect::<Result<Vec<_>>>()?));
        }
        // `down` decides: where hidden = 2 * width the two `gate_up` layouts have one shape, but then hidden
        // and width differ.
        let down_name = format!("{name}.down_proj");
        let out_in = [experts, hidden, width];
        let in_out = [experts, width, hidden];
        let down = self.claims.take_any(&[(&down_name, out_in.into()), (&down_name, in_out.into())])?;
        let layout = if hidden != width {
            [WeightLayout::OutIn, WeightLayout::InOut][down.0]
        } else {
            // Square: the fused tensor decides instead.
            let sides = |shape: [usize; 3]| (fused.as_str(), Shape::from(shape));
            let both = [sides([experts, 2 * width, hidden]), sides([experts, hidden, 2 * width])];
            [WeightLayout::OutIn, WeightLayout::InOut][self.claims.take_any(&both)?.0]
        };
        let gate_up_dims = match layout {
            WeightLayout::OutIn => [experts, 2 * width, hidden],
            WeightLayout::InOut => [experts, hidden, 2 * width],
        };
        let gate_up = self.claims.take_linear(&fused, Shape::new(&gate_up_dims))?;
        let gate_up = self.whole_scales(&fused, gate_up, layout, width)?;
        let down = self.whole_scales(&down_name, down.1, layout, hidden)?;
        let quant = self.how.quant;
        let formats = [self.format(&gate_up, quant, Role::Linear, hidden), self.format(&down, quant, sensitive, width)];
        if let (WeightLayout::InOut, [Some(gate_up_type), Some(down_type)]) = (layout, formats) {
            // Blocks run along `in`: the experts are turned. Where one of the two can't be quantised, neither is.
            let sides = Shape::from([experts, 2 * width, hidden]);
            let gate_up = self.quantised(&fused, &gate_up, gate_up_type, sides, true)?;
            let down = self.quantised(&down_name, &down, down_type, Shape::from(out_in), true)?;
            return Ok(ResidentExperts::Fused { gate_up, down, layout: WeightLayout::OutIn });
        }
        let mut bring = |name: &str, linear: &Linear, format: Option<DType>| match (layout, format) {
            (WeightLayout::OutIn, Some(dtype)) => self.quantised(name, linear, dtype, linear.shape(), false),
            _ => self.bring_laid_out(name, linear, layout),
        };
        let down = bring(&down_name, &down, formats[1])?;
        let gate_up = bring(&fused, &gate_up, formats[0])?;
        Ok(ResidentExperts::Fused { gate_up, down, layout })
    }

    /// Widens a weight with scales of its own that ops can't take as it lies: stored `[in, out]`, or with a scale that
    /// reaches over the border between two parts of `part` outputs.
    fn whole_scales(&mut self, name: &str, linear: Linear, layout: WeightLayout, part: usize) -> Result<Linear> {
        match &linear {
            Linear::Scaled(s)
                if layout == WeightLayout::InOut || (s.form.rows() > 1 && !part.is_multiple_of(s.form.rows())) =>
            {
                Ok(Linear::Piece(self.claims.take(name, s.shape)?))
            }
            _ => Ok(linear),
        }
    }
}
