//! From a checkpoint's names to a model's weights.
//!
//! Every tensor is claimed by name and shape, and what is left over is refused: a tensor that nobody asked
//! for belongs to a slightly different model.

use std::collections::HashMap;
use std::sync::Arc;

use turbospark_device::{Buffer, Device, DeviceError, Mapping, ReferenceDevice, WeightLayout};
use turbospark_tensor::quant::requantise;
use turbospark_tensor::{DType, Shape};
use turbospark_weights::{Checkpoint, Claims, FileId, Linear, Piece, Scaled};

use crate::blocks::attention::AttentionWeights;
use crate::blocks::delta::DeltaWeights;
use crate::blocks::mlp::{DenseWeights, Mlp, MoeWeights, ResidentExperts};
use crate::blocks::vision_block::{BlockWeights, MergerWeights, NormWeights};
use crate::config::{Config, DeltaConfig, LayerKind, MlpKind, MoeConfig, TextConfig, VisionConfig};
use crate::quant::{Quant, Role, requantise_transposed};
use crate::rope::TextRope;
use crate::trunk::{Layer, Mixer, Norm, Trunk};
use crate::vision_tower::VisionTower;
use crate::weight::{Affine, Matrix, ScaledTensors, Weight};
use crate::{ModelError, Result};

/// Parts of published checkpoints that are known and not run: the multi-token prediction head.
const KNOWN_SKIPS: &[&str] = &["mtp.", "model.mtp.", "model.language_model.mtp."];

/// A tower and a trunk, ready to run on the device they were loaded to.
#[derive(Debug)]
pub struct Model {
    /// What `config.json` says.
    pub config: Config,
    /// The decoder.
    pub trunk: Trunk,
    /// The vision tower; `None` in a text-only checkpoint.
    pub vision: Option<VisionTower>,
    /// Tensors of heads that are known and not run.
    pub skipped_tensors: usize,
}

impl Model {
    /// Brings a checkpoint's weights to `device`: the file's own pages where the device can use them, copies
    /// elsewhere.
    ///
    /// # Errors
    /// A tensor that is missing, unknown or misshapen, by name and with both shapes; the device's.
    pub fn load(config: Config, checkpoint: &Checkpoint, device: &dyn Device) -> Result<Self> {
        Self::load_as(config, checkpoint, device, &LoadAs::default())
    }

    /// As [`Model::load`], with the trunk's linear weights quantised as they are brought.
    ///
    /// # Errors
    /// As [`Model::load`]; a weight that is not finite or too large for its format, by name.
    pub fn load_as(config: Config, checkpoint: &Checkpoint, device: &dyn Device, how: &LoadAs) -> Result<Self> {
        let loader = Loader { device, how: *how, claims: checkpoint.claims(), files: HashMap::new(), plan: None };
        loader.load(config).map(|(model, _)| model)
    }
}

/// A tensor that a model asks for, and what becomes of it.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its published name.
    pub name: String,
    /// Where it comes from.
    pub source: Linear,
    /// The block format that it is quantised to; `None` where it stays as it is stored.
    pub target: Option<DType>,
    /// Whether it is stored `[.., in, out]`.
    pub in_out: bool,
}

/// The tensors of a model in the order in which a pass uses them, without bringing one.
///
/// # Errors
/// As [`Model::load_as`], but for what only the tensors' bytes show.
pub fn plan(config: Config, checkpoint: &Checkpoint, how: &LoadAs) -> Result<Vec<Planned>> {
    let (claims, plan) = (checkpoint.claims(), Some(Vec::new()));
    let loader = Loader { device: &ReferenceDevice, how: *how, claims, files: HashMap::new(), plan };
    loader.load(config).map(|(_, plan)| plan)
}

/// How weights are brought to a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadAs {
    /// Formats to quantise the trunk to; what is quantised already stays as it is.
    pub quant: Option<Quant>,
    /// Formats to quantise the vision tower to.
    pub vision_quant: Option<Quant>,
    /// Whether what is quantised already is quantised again.
    pub requantise: bool,
    /// Threads that quantise; the number changes no bit. `None` takes the processors that the process may use.
    pub threads: Option<usize>,
}

struct Loader<'a> {
    device: &'a dyn Device,
    how: LoadAs,
    claims: Claims<'a>,
    /// Mapped files that the device uses in place; `None` where it can't.
    files: HashMap<FileId, Option<Arc<Buffer>>>,
    /// Where tensors are listed and not brought.
    plan: Option<Vec<Planned>>,
}

impl Loader<'_> {
    fn load(mut self, config: Config) -> Result<(Model, Vec<Planned>)> {
        let vision = config.vision.as_ref().map(|v| self.tower(v)).transpose()?;
        let deepstack_blocks = config.vision.as_ref().map_or(Vec::new(), |v| v.deepstack_visual_indexes.clone());
        let trunk = self.trunk(&config, deepstack_blocks)?;
        let skipped_tensors = self.claims.finish(KNOWN_SKIPS)?;
        Ok((Model { config, trunk, vision, skipped_tensors }, self.plan.unwrap_or_default()))
    }

    /// Lists a tensor where there is a plan.
    fn planned(&mut self, name: &str, source: &Linear, target: Option<DType>, in_out: bool) -> Result<Option<Matrix>> {
        let Some(plan) = &mut self.plan else { return Ok(None) };
        plan.push(Planned { name: name.to_owned(), source: source.clone(), target, in_out });
        let nothing = Arc::new(self.device.alloc(name, 0)?);
        Ok(Some(Matrix::Plain(Weight::new(nothing, 0, DType::F32, source.shape()))))
    }

    /// A tensor of floats, such as a norm.
    fn take(&mut self, name: &str, dims: &[usize]) -> Result<Weight> {
        let piece = self.claims.take(name, Shape::new(dims))?;
        match self.planned(name, &Linear::Piece(piece.clone()), None, false)? {
            Some(Matrix::Plain(weight)) => Ok(weight),
            _ => self.bring(name, &piece),
        }
    }

    fn bring(&mut self, name: &str, piece: &Piece) -> Result<Weight> {
        let checkpoint = self.claims.checkpoint();
        if let Piece::Place(place) = piece
            && let Some(buffer) = self.adopted(place.file)?
        {
            let offset = usize::try_from(place.offset).map_err(|_| too_large(name))?;
            return Ok(Weight::new(buffer, offset, place.dtype, place.shape));
        }
        let bytes = usize::try_from(piece.length()).map_err(|_| too_large(name))?;
        let buffer = self.device.alloc(name, bytes)?;
        let fill = |out: &mut [u8]| checkpoint.fill(piece, out).map_err(std::io::Error::other);
        self.device.fill(buffer.bytes(), &mut { fill })?;
        Ok(Weight::new(Arc::new(buffer), 0, piece.dtype(), piece.shape()))
    }

    /// A file's own pages, where the device can use them.
    fn adopted(&mut self, file: FileId) -> Result<Option<Arc<Buffer>>> {
        if let Some(known) = self.files.get(&file) {
            return Ok(known.clone());
        }
        let mapping: Mapping = self.claims.checkpoint().map(file)?;
        let adopted = self.device.adopt(mapping)?.map(Arc::new);
        self.files.insert(file, adopted.clone());
        Ok(adopted)
    }

    /// A linear weight or table `[out, in]`, quantised where that is asked for and its rows are whole blocks.
    fn linear(&mut self, name: &str, dims: &[usize], role: Role) -> Result<Matrix> {
        self.linear_as(name, dims, self.how.quant, role)
    }

    fn linear_as(&mut self, name: &str, dims: &[usize], quant: Option<Quant>, role: Role) -> Result<Matrix> {
        let linear = self.claims.take_linear(name, Shape::new(dims))?;
        let Some(dtype) = self.format(&linear, quant, role, dims[dims.len() - 1]) else {
            return self.bring_linear(name, &linear);
        };
        let linear = match linear {
            // A plan leaves it to whoever quantises how much is widened at a time.
            Linear::Scaled(_) if self.plan.is_none() => Linear::Piece(self.claims.take(name, Shape::new(dims))?),
            linear => linear,
        };
        self.quantised(name, &linear, dtype, linear.shape(), false)
    }

    /// A linear weight in the form that it is stored in.
    fn stored(&mut self, name: &str, dims: &[usize]) -> Result<Matrix> {
        let linear = self.claims.take_linear(name, Shape::new(dims))?;
        self.bring_linear(name, &linear)
    }

    fn bring_linear(&mut self, name: &str, linear: &Linear) -> Result<Matrix> {
        self.bring_laid_out(name, linear, WeightLayout::OutIn)
    }

    fn bring_laid_out(&mut self, name: &str, linear: &Linear, layout: WeightLayout) -> Result<Matrix> {
        if let Some(planned) = self.planned(name, linear, None, layout == WeightLayout::InOut)? {
            return Ok(planned);
        }
        match linear {
            Linear::Piece(piece) => Ok(Matrix::Plain(self.bring(name, piece)?)),
            Linear::Scaled(Scaled { shape, codes, scales, biases, form }) => Ok(Matrix::Scaled(ScaledTensors {
                shape: *shape,
                codes: self.bring(name, codes)?,
                scales: self.bring(name, scales)?,
                biases: biases.as_ref().map(|b| self.bring(name, b)).transpose()?,
                form: *form,
            })),
        }
    }

    /// A linear weight of the tower of which ops take ranges of `part` outputs: those that share a scale across such a
    /// border are widened.
    fn in_parts(&mut self, name: &str, dims: &[usize], part: usize) -> Result<Matrix> {
        match self.claims.take_linear(name, Shape::new(dims))? {
            Linear::Scaled(s) if s.form.rows() > 1 && !part.is_multiple_of(s.form.rows()) => {
                let piece = self.claims.take(name, Shape::new(dims))?;
                self.bring_linear(name, &Linear::Piece(piece))
            }
            _ => self.linear_as(name, dims, self.how.vision_quant, Role::Linear),
        }
    }

    /// What a tensor with rows of `row` is quantised to.
    fn format(&self, linear: &Linear, quant: Option<Quant>, role: Role, row: usize) -> Option<DType> {
        let float = matches!(linear, Linear::Piece(piece) if piece.dtype().is_float());
        quant.filter(|_| float || self.how.requantise)?.of(role, row)
    }

    /// The tensor as blocks of `dtype`, with `shape`; `transposed` when its columns become rows.
    fn quantised(
        &mut self,
        name: &str,
        linear: &Linear,
        dtype: DType,
        shape: Shape,
        transposed: bool,
    ) -> Result<Matrix> {
        if let Some(planned) = self.planned(name, linear, Some(dtype), transposed)? {
            return Ok(planned);
        }
        let Linear::Piece(piece) = linear else { unreachable!("only one tensor is quantised") };
        let len = dtype.bytes(shape.elements()).ok_or_else(|| too_large(name))?;
        let bytes = self.bytes(name, piece)?;
        let (from, sides) = (piece.dtype(), piece.shape());
        let threads = self.how.threads.or_else(|| std::thread::available_parallelism().ok().map(|n| n.get()));
        let threads = threads.unwrap_or(1);
        let buffer = self.device.alloc(name, len)?;
        let mut refused = None;
        let filled = self.device.fill(buffer.bytes(), &mut |out| {
            let done = match transposed {
                true => requantise_transposed(&bytes, from, sides, dtype, threads, out),
                false => requantise(&bytes, from, dtype, threads, out),
            };
            done.map_err(|e| {
                refused = Some(e);
                std::io::Error::other("not quantised")
            })
        });
        if let Some(source) = refused {
            return Err(ModelError::Quant { name: name.to_owned(), source });
        }
        filled?;
        Ok(Matrix::Plain(Weight::new(Arc::new(buffer), 0, dtype, shape)))
    }

    /// A tensor's bytes, in place where it lies in a file.
    fn bytes(&self, name: &str, piece: &Piece) -> Result<Bytes> {
        let checkpoint = self.claims.checkpoint();
        let Piece::Place(place) = piece else {
            let mut bytes = vec![0; usize::try_from(piece.length()).map_err(|_| too_large(name))?];
            checkpoint.fill(piece, &mut bytes)?;
            return Ok(Bytes::Made(bytes));
        };
        let mapping = checkpoint.map(place.file)?;
        let range = || Some(usize::try_from(place.offset).ok()?..usize::try_from(place.offset + place.length).ok()?);
        let whole = <turbospark_weights::Mapping as AsRef<[u8]>>::as_ref(&mapping).len();
        let range = range().filter(|r| r.end <= whole).ok_or_else(|| too_large(name))?;
        Ok(Bytes::Mapped(mapping, range))
    }

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

    fn tower(&mut self, c: &VisionConfig) -> Result<VisionTower> {
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
        Ok(VisionTower { config: c.clone(), patch_embed, pos_embed, blocks, merger, deepstack_mergers })
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

    fn trunk(&mut self, config: &Config, deepstack_blocks: Vec<usize>) -> Result<Trunk> {
        let c = &config.text;
        // Text-only exports leave `language_model` out.
        let nested = "model.language_model";
        let root = if self.claims.contains(&format!("{nested}.embed_tokens.weight")) { nested } else { "model" };
        let one_plus = config.family.is_qwen35() && !self.claims.checkpoint().conventions().norms_hold_one;
        let table = [c.vocab_size, c.hidden_size];
        let tied = config.tie_word_embeddings;
        let role = if tied { Role::Head } else { Role::Linear };
        let embed = self.linear(&format!("{root}.embed_tokens.weight"), &table, role)?;
        let layers = (0..c.num_hidden_layers)
            .map(|i| self.layer(&format!("{root}.layers.{i}"), c, i, one_plus))
            .collect::<Result<Vec<_>>>()?;
        let norm = self.norm(&format!("{root}.norm.weight"), c.hidden_size, c, one_plus)?;
        let lm_head = if tied { embed.clone() } else { self.linear("lm_head.weight", &table, Role::Head)? };
        let rope = TextRope::new(&c.rope);
        Ok(Trunk { family: config.family, config: c.clone(), embed, layers, norm, lm_head, rope, deepstack_blocks })
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
            tiled: conventions.value_heads_tiled,
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
            experts: self.experts(&format!("{name}.experts"), hidden, m, sensitive)?,
            width: m.moe_intermediate_size,
            norm_topk_prob: m.norm_topk_prob,
            shared,
        })
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

/// A tensor's bytes.
enum Bytes {
    Mapped(Arc<turbospark_weights::Mapping>, std::ops::Range<usize>),
    Made(Vec<u8>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapping, range) => &(**mapping).as_ref()[range.clone()],
            Bytes::Made(bytes) => bytes,
        }
    }
}

fn too_large(name: &str) -> ModelError {
    ModelError::Device(DeviceError::Unsupported(format!("tensor {name:?} does not fit this machine's address space")))
}
