//! Checkpoints of random bf16 weights, for measuring speed without a download.
//!
//! The values repeat after about a million: what they are changes no speed, but activations must stay finite,
//! experts must differ so that the router spreads, and writing must take no longer than the disk. The layout is
//! that of published files: tensors by name, a header padded to 8 bytes, nothing aligned further.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use turbospark_models::UnitSizes;

use super::Shape;
use crate::config::{Config, DeltaConfig, Family, LayerKind, MlpKind, MoeConfig, TextConfig, VisionConfig};
use crate::{Cancel, Error, Result};

/// Values until they repeat: a prime, so that rows of no width line up.
const PERIOD: usize = 1_048_573;
/// Bytes that a thread writes at once.
const BLOCK: usize = 4 << 20;

/// How the values of a tensor lie: uniform around a centre.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Values {
    centre: f32,
    spread: f32,
}

struct Tensor {
    dims: Vec<usize>,
    values: Values,
}

/// Where checkpoints of random weights are kept: `turbospark/shapes` in the user's cache folder.
///
/// # Errors
/// When the environment names no cache folder and no home.
pub fn cache_folder() -> Result<PathBuf> {
    Ok(crate::folders::cache()?.join("shapes"))
}

/// A checkpoint of random weights in this shape, in a folder named for it inside `folder`: the one that is there,
/// or a new one. It is written under another name and renamed when it is whole.
///
/// `progress` hears how many bytes of how many are written, on the calling thread.
///
/// # Errors
/// The system's, with the size that is needed; [`Error::Cancelled`].
pub fn build_checkpoint(
    shape: &Shape,
    folder: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PathBuf> {
    let config_text = format!("{:#}\n", shape.config);
    let config = Config::parse(&config_text).map_err(turbospark_models::ModelError::from)?;
    let plan = Plan::new(&config);
    let path = folder.join(shape.name);
    let is_there = fs::read_to_string(path.join("config.json")).is_ok_and(|text| text == config_text)
        && fs::metadata(path.join(WEIGHTS)).is_ok_and(|m| m.len() == plan.file_bytes());
    if is_there {
        return Ok(path);
    }
    let partial = folder.join(format!("{}.partial-{}", shape.name, std::process::id()));
    let written = write(&partial, &config_text, &config, &plan, cancel, progress).and_then(|()| {
        if path.exists() {
            fs::remove_dir_all(&path)?; // of another version
        }
        fs::rename(&partial, &path)
    });
    written.map_err(|source| {
        let _ = fs::remove_dir_all(&partial);
        if cancel.is_cancelled() {
            return Error::Cancelled;
        }
        let needed = format!("{:.1} GB are needed for {}", plan.file_bytes() as f64 / 1e9, shape.name);
        let source = match source.kind() {
            io::ErrorKind::StorageFull => io::Error::new(source.kind(), format!("the disk is full; {needed}")),
            kind => io::Error::new(kind, format!("{source} ({needed})")),
        };
        Error::Io { path: folder.display().to_string(), source }
    })?;
    Ok(path)
}

const WEIGHTS: &str = "model.safetensors";

fn write(
    folder: &Path,
    config_text: &str,
    config: &Config,
    plan: &Plan,
    cancel: &Cancel,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.json"), config_text)?;
    fs::write(folder.join("preprocessor_config.json"), preprocessor(config).to_string())?;
    fs::write(folder.join("tokenizer.json"), tokenizer(config).to_string())?;
    plan.write(&folder.join(WEIGHTS), cancel, progress)
}

fn preprocessor(config: &Config) -> Value {
    let sizes =
        config.vision.as_ref().map_or([16, 2, 2], |v| [v.patch_size, v.temporal_patch_size, v.spatial_merge_size]);
    json!({
        "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}, "patch_size": sizes[0],
        "temporal_patch_size": sizes[1], "merge_size": sizes[2], "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
    })
}

/// Bytes as tokens, and the control tokens that `config.json` names.
fn tokenizer(config: &Config) -> Value {
    // The byte-level alphabet: printable characters stand for themselves, the rest for those from 256 on.
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 256..;
    let mut vocab = Map::new();
    for byte in 0..256u32 {
        let stands_for = if printable(byte) { byte } else { others.next().unwrap_or_default() };
        vocab.insert(char::from_u32(stands_for).unwrap_or_default().to_string(), byte.into());
    }
    let named = [
        ("<|image_pad|>", config.image_token_id),
        ("<|video_pad|>", config.video_token_id),
        ("<|vision_start|>", config.vision_start_token_id),
        ("<|vision_end|>", config.vision_end_token_id),
        ("<|im_end|>", config.eos_token_ids.first().copied()),
    ];
    let added: Vec<Value> = named
        .into_iter()
        .filter_map(|(content, id)| Some(json!({"id": id?, "content": content, "special": true})))
        .collect();
    json!({
        "version": "1.0", "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// Sizes of a shape's units, with `bits` a weight for the trunk's linear layers and its tables; everything else has 16.
pub(crate) fn unit_sizes(config: &Config, bits: [f64; 2]) -> UnitSizes {
    let tensors = tensors_of(config);
    let bytes = |name: &str, dims: &[usize]| {
        let of = match dims.len() {
            0 | 1 => 16.0,
            _ if name.contains(".visual.") || name.contains("mlp.gate.") => 16.0,
            _ if name.ends_with("embed_tokens.weight") || name == "lm_head.weight" => bits[1],
            _ => bits[0],
        };
        (dims.iter().product::<usize>() as f64 * of / 8.0) as u64
    };
    UnitSizes::of_shapes(tensors.iter().map(|(name, t)| (name.as_str(), &t.dims[..], bytes(name, &t.dims))))
}

/// What a weights file holds and where.
struct Plan {
    header: Vec<u8>,
    /// First byte after the header's, and the tensor; in the file's order.
    tensors: Vec<(u64, Tensor)>,
    data_bytes: u64,
}

impl Plan {
    fn new(config: &Config) -> Self {
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!({"format": "pt"}));
        let mut tensors = Vec::new();
        let mut at = 0u64;
        for (name, tensor) in tensors_of(config) {
            let end = at + 2 * tensor.dims.iter().product::<usize>() as u64;
            header.insert(name, json!({"dtype": "BF16", "shape": tensor.dims, "data_offsets": [at, end]}));
            tensors.push((at, tensor));
            at = end;
        }
        let mut text = Value::Object(header).to_string();
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text.into_bytes());
        Plan { header, tensors, data_bytes: at }
    }

    fn file_bytes(&self) -> u64 {
        self.header.len() as u64 + self.data_bytes
    }

    fn write(&self, path: &Path, cancel: &Cancel, progress: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&self.header)?;
        file.set_len(self.file_bytes())?;
        let tables = Tables::new(&self.tensors);
        let blocks = self.data_bytes.div_ceil(BLOCK as u64) as usize;
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(blocks.max(1));
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let failure = Mutex::new(None);
        let work = |report: &mut dyn FnMut()| {
            let ran = (|| {
                let mut file = File::options().write(true).open(path)?;
                let mut block = vec![0; BLOCK];
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= blocks {
                        return Ok(());
                    }
                    if cancel.is_cancelled() {
                        return Err(io::Error::from(io::ErrorKind::Interrupted));
                    }
                    let from = i as u64 * BLOCK as u64;
                    let block = &mut block[..BLOCK.min((self.data_bytes - from) as usize)];
                    self.fill(&tables, from, block);
                    file.seek(SeekFrom::Start(self.header.len() as u64 + from))?;
                    file.write_all(block)?;
                    done.fetch_add(block.len() as u64, Ordering::Relaxed);
                    report();
                }
            })();
            if let Err(error) = ran {
                next.store(blocks, Ordering::Relaxed);
                failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| work(&mut || ()));
            }
            work(&mut || progress(done.load(Ordering::Relaxed), self.data_bytes));
        });
        match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The data's bytes from `from` on.
    fn fill(&self, tables: &Tables, from: u64, mut out: &mut [u8]) {
        let mut at = from;
        let mut i = self.tensors.partition_point(|(start, _)| *start <= at) - 1;
        while !out.is_empty() {
            let end = self.tensors.get(i + 1).map_or(self.data_bytes, |(start, _)| *start);
            let n = out.len().min((end - at) as usize);
            let (piece, rest) = out.split_at_mut(n);
            let (start, tensor) = &self.tensors[i];
            let table = tables.of(tensor.values);
            // Tensors begin at different places, so that no two layers are equal.
            let first = (i * 7_919 + (at - start) as usize / 2) % PERIOD;
            copy_round(table, 2 * first, piece);
            (out, at, i) = (rest, at + n as u64, i + 1);
        }
    }
}

/// Copies from `table`, which begins again where it ends.
fn copy_round(table: &[u8], mut from: usize, mut out: &mut [u8]) {
    while !out.is_empty() {
        let n = out.len().min(table.len() - from);
        let (piece, rest) = out.split_at_mut(n);
        piece.copy_from_slice(&table[from..from + n]);
        (out, from) = (rest, 0);
    }
}

/// A period of values, as bf16 bytes, for each way that values lie.
struct Tables(HashMap<[u32; 2], Vec<u8>>);

impl Tables {
    fn new(tensors: &[(u64, Tensor)]) -> Self {
        // splitmix64, cut to f32 in -1..1.
        let mut state = 0u64;
        let unit: Vec<f32> = (0..PERIOD)
            .map(|_| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((z ^ (z >> 31)) as i64 >> 40) as f32 / (1 << 23) as f32
            })
            .collect();
        let mut tables = HashMap::new();
        for (_, tensor) in tensors {
            tables.entry(key(tensor.values)).or_insert_with(|| {
                let Values { centre, spread } = tensor.values;
                // Cut, not rounded: random values need no rounding.
                let bf16 = |x: &f32| (((centre + spread * x).to_bits() >> 16) as u16).to_le_bytes();
                unit.iter().flat_map(bf16).collect()
            });
        }
        Tables(tables)
    }

    fn of(&self, values: Values) -> &[u8] {
        &self.0[&key(values)]
    }
}

fn key(values: Values) -> [u32; 2] {
    [values.centre.to_bits(), values.spread.to_bits()]
}

/// Published names, shapes and values that keep activations near 1.
fn tensors_of(config: &Config) -> BTreeMap<String, Tensor> {
    let mut w = Writer(BTreeMap::new());
    if let Some(v) = &config.vision {
        w.tower(v);
    }
    let c = &config.text;
    // Norms of Qwen3.5 multiply by 1 + w.
    let centre = if config.family.is_qwen35() { 0.0 } else { 1.0 };
    w.put("model.language_model.embed_tokens.weight".into(), &[c.vocab_size, c.hidden_size], 0.0, 0.6);
    w.put("model.language_model.norm.weight".into(), &[c.hidden_size], centre, 0.3);
    if !config.tie_word_embeddings {
        w.linear("lm_head.weight".into(), &[c.vocab_size, c.hidden_size], c.hidden_size);
    }
    for i in 0..c.num_hidden_layers {
        let l = format!("model.language_model.layers.{i}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            w.put(format!("{l}.{norm}.weight"), &[c.hidden_size], centre, 0.3);
        }
        match (c.layer_kinds[i], &c.delta) {
            (LayerKind::LinearAttention, Some(d)) => w.delta(&format!("{l}.linear_attn"), c, d),
            _ => w.attention(&format!("{l}.self_attn"), c, centre),
        }
        let mlp = format!("{l}.mlp");
        match (c.mlp_kinds[i], &c.moe) {
            (MlpKind::Moe, Some(m)) => w.experts(&mlp, c.hidden_size, m, config.family),
            _ => w.swiglu(&mlp, c.hidden_size, c.intermediate_size),
        }
    }
    w.0
}

struct Writer(BTreeMap<String, Tensor>);

impl Writer {
    fn put(&mut self, name: String, dims: &[usize], centre: f32, spread: f32) {
        self.0.insert(name, Tensor { dims: dims.to_vec(), values: Values { centre, spread } });
    }

    /// With the variance that keeps a sum of `inner` terms near 1.
    fn linear(&mut self, name: String, dims: &[usize], inner: usize) {
        self.put(name, dims, 0.0, (3.0 / inner as f32).sqrt());
    }

    fn affine(&mut self, name: &str, out: usize, inner: usize) {
        self.linear(format!("{name}.weight"), &[out, inner], inner);
        self.put(format!("{name}.bias"), &[out], 0.0, 0.1);
    }

    fn layer_norm(&mut self, name: &str, n: usize) {
        self.put(format!("{name}.weight"), &[n], 1.0, 0.3);
        self.put(format!("{name}.bias"), &[n], 0.0, 0.1);
    }

    fn swiglu(&mut self, name: &str, hidden: usize, width: usize) {
        self.linear(format!("{name}.gate_proj.weight"), &[width, hidden], hidden);
        self.linear(format!("{name}.up_proj.weight"), &[width, hidden], hidden);
        self.linear(format!("{name}.down_proj.weight"), &[hidden, width], width);
    }

    fn attention(&mut self, name: &str, c: &TextConfig, centre: f32) {
        let h = c.hidden_size;
        let (queries, keys) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let gated = 1 + usize::from(c.attention_output_gate);
        self.linear(format!("{name}.q_proj.weight"), &[queries * gated, h], h);
        self.linear(format!("{name}.k_proj.weight"), &[keys, h], h);
        self.linear(format!("{name}.v_proj.weight"), &[keys, h], h);
        self.linear(format!("{name}.o_proj.weight"), &[h, queries], queries);
        self.put(format!("{name}.q_norm.weight"), &[c.head_dim], centre, 0.3);
        self.put(format!("{name}.k_norm.weight"), &[c.head_dim], centre, 0.3);
    }

    fn delta(&mut self, name: &str, c: &TextConfig, d: &DeltaConfig) {
        let (h, heads, values) = (c.hidden_size, d.num_value_heads, d.value_dim());
        self.linear(format!("{name}.in_proj_qkv.weight"), &[d.conv_channels(), h], h);
        self.linear(format!("{name}.in_proj_z.weight"), &[values, h], h);
        self.linear(format!("{name}.in_proj_b.weight"), &[heads, h], h);
        self.linear(format!("{name}.in_proj_a.weight"), &[heads, h], h);
        self.linear(format!("{name}.conv1d.weight"), &[d.conv_channels(), 1, d.conv_kernel], d.conv_kernel);
        self.put(format!("{name}.A_log"), &[heads], 1.0, 1.0);
        self.put(format!("{name}.dt_bias"), &[heads], -4.0, 2.0);
        self.put(format!("{name}.norm.weight"), &[d.value_head_dim], 1.0, 0.3);
        self.linear(format!("{name}.out_proj.weight"), &[h, values], values);
    }

    /// In the layout in which the family's checkpoints are published.
    fn experts(&mut self, name: &str, hidden: usize, m: &MoeConfig, family: Family) {
        let (experts, width) = (m.num_experts, m.moe_intermediate_size);
        let (gate_up, down) = match family {
            Family::Qwen3VlMoe => ([experts, hidden, 2 * width], [experts, width, hidden]),
            _ => ([experts, 2 * width, hidden], [experts, hidden, width]),
        };
        self.linear(format!("{name}.gate.weight"), &[experts, hidden], hidden);
        self.linear(format!("{name}.experts.gate_up_proj"), &gate_up, hidden);
        self.linear(format!("{name}.experts.down_proj"), &down, width);
        if let Some(shared) = m.shared_expert_intermediate_size {
            self.swiglu(&format!("{name}.shared_expert"), hidden, shared);
            self.linear(format!("{name}.shared_expert_gate.weight"), &[1, hidden], hidden);
        }
    }

    fn tower(&mut self, c: &VisionConfig) {
        const V: &str = "model.visual";
        let d = c.hidden_size;
        let kernel = [d, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size];
        self.linear(format!("{V}.patch_embed.proj.weight"), &kernel, c.patch_dim());
        self.put(format!("{V}.patch_embed.proj.bias"), &[d], 0.0, 0.1);
        self.put(format!("{V}.pos_embed.weight"), &[c.num_position_embeddings, d], 0.0, 0.3);
        for j in 0..c.depth {
            let b = format!("{V}.blocks.{j}");
            self.layer_norm(&format!("{b}.norm1"), d);
            self.layer_norm(&format!("{b}.norm2"), d);
            self.affine(&format!("{b}.attn.qkv"), 3 * d, d);
            self.affine(&format!("{b}.attn.proj"), d, d);
            self.affine(&format!("{b}.mlp.linear_fc1"), c.intermediate_size, d);
            self.affine(&format!("{b}.mlp.linear_fc2"), d, c.intermediate_size);
        }
        let wide = c.merge_unit() * d;
        let deepstack = (0..c.deepstack_visual_indexes.len()).map(|k| (format!("{V}.deepstack_merger_list.{k}"), wide));
        for (m, norm) in deepstack.chain([(format!("{V}.merger"), d)]) {
            self.layer_norm(&format!("{m}.norm"), norm);
            self.affine(&format!("{m}.linear_fc1"), wide, wide);
            self.affine(&format!("{m}.linear_fc2"), c.out_hidden_size, wide);
        }
    }
}
