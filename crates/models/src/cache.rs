//! What sequences leave behind: keys and values by page, DeltaNet states by slot.

use std::str::FromStr;

use turbospark_device::op::Copy;
use turbospark_device::{Buffer, Device, Pass, Precision, View};
use turbospark_tensor::DType;

use crate::blocks::attention::LayerKv;
use crate::blocks::delta::LayerState;
use crate::config::{DeltaConfig, LayerKind, TextConfig};
use crate::{ModelError, Result};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// f32 where the precision is f32, else f16.
    #[default]
    Auto,
    /// As they are computed.
    F32,
    /// 16 bits an element.
    F16,
    /// 8.5 bits an element: `Q8_0` blocks along each head, for heads of a multiple of 32.
    Q8,
}

/// A name that is no [`KvFormat`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format {0:?}; keys and values are kept in auto, f32, f16 or q8")]
pub struct UnknownKvFormat(String);

impl FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(name: &str) -> Result<Self, UnknownKvFormat> {
        Ok(match name {
            "auto" => KvFormat::Auto,
            "f32" => KvFormat::F32,
            "f16" => KvFormat::F16,
            "q8" => KvFormat::Q8,
            _ => return Err(UnknownKvFormat(name.to_owned())),
        })
    }
}

impl KvFormat {
    /// The element type, on a device of this precision.
    pub fn dtype(self, precision: Precision) -> DType {
        match (self, precision) {
            (KvFormat::F32, _) | (KvFormat::Auto, Precision::F32) => DType::F32,
            (KvFormat::F16, _) | (KvFormat::Auto, Precision::Auto) => DType::F16,
            (KvFormat::Q8, _) => DType::Q8_0,
        }
    }
}

/// How much a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Pages of the KV cache, shared by all sequences.
    pub pages: usize,
    /// Tokens a page.
    pub page_len: usize,
    /// Slots for DeltaNet states: one a live sequence and one a snapshot.
    pub states: usize,
    /// Element type of keys and values: a float type or `Q8_0`.
    pub kv_dtype: DType,
}

impl CacheShape {
    /// Tokens a page: the spacing at which splits of a KV range start.
    pub const PAGE_LEN: usize = 64;

    /// Room for `sequences` sequences of up to `tokens` tokens each.
    pub fn for_sequences(sequences: usize, tokens: usize, kv_dtype: DType) -> Self {
        CacheShape {
            pages: sequences * tokens.div_ceil(Self::PAGE_LEN),
            page_len: Self::PAGE_LEN,
            states: sequences,
            kv_dtype,
        }
    }

    /// Bytes that one token takes in all layers.
    pub fn bytes_per_token(&self, config: &TextConfig) -> usize {
        let attention = config.layer_kinds.iter().filter(|&&k| k == LayerKind::FullAttention).count();
        2 * attention * self.bytes_per_row(config)
    }

    /// Bytes of one token's keys, or values, in one layer.
    fn bytes_per_row(&self, config: &TextConfig) -> usize {
        let block = self.kv_dtype.block();
        config.num_key_value_heads * config.head_dim.div_ceil(block.elements) * block.bytes
    }

    /// Bytes that one state slot takes in all layers.
    pub fn bytes_per_state(&self, config: &TextConfig) -> usize {
        let linear = config.layer_kinds.iter().filter(|&&k| k == LayerKind::LinearAttention).count();
        let one = |d: &DeltaConfig| 4 * (d.conv_channels() * d.conv_kernel + delta_elements(d));
        linear * config.delta.as_ref().map_or(0, one)
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self, config: &TextConfig) -> usize {
        self.pages * self.page_len * self.bytes_per_token(config) + self.states * self.bytes_per_state(config)
    }
}

fn delta_elements(d: &DeltaConfig) -> usize {
    d.num_value_heads * d.key_head_dim * d.value_head_dim
}

enum Layer {
    Kv { k: Buffer, v: Buffer },
    State { conv: Buffer, delta: Buffer },
}

/// Keys, values and states of all layers.
pub struct Cache {
    layers: Vec<Layer>,
    shape: CacheShape,
    kv_heads: usize,
    head_dim: usize,
    delta: Option<DeltaConfig>,
}

impl Cache {
    /// Allocates all of it on the device.
    ///
    /// # Errors
    /// When heads are no whole blocks of the type of keys and values. The device's, when it has no room.
    pub fn new(device: &dyn Device, config: &TextConfig, shape: CacheShape) -> Result<Self> {
        let (dtype, block, head_dim) = (shape.kv_dtype, shape.kv_dtype.block().elements, config.head_dim);
        if !head_dim.is_multiple_of(block) {
            return Err(ModelError::KvFormat { dtype, block, head_dim });
        }
        let kv_bytes = shape.pages * shape.page_len * shape.bytes_per_row(config);
        let layers = config.layer_kinds.iter().map(|kind| match (kind, &config.delta) {
            (LayerKind::LinearAttention, Some(d)) => Ok(Layer::State {
                conv: device.alloc("convolution tails", 4 * shape.states * d.conv_channels() * d.conv_kernel)?,
                delta: device.alloc("DeltaNet states", 4 * shape.states * delta_elements(d))?,
            }),
            _ => Ok(Layer::Kv { k: device.alloc("key cache", kv_bytes)?, v: device.alloc("value cache", kv_bytes)? }),
        });
        Ok(Cache {
            layers: layers.collect::<Result<_>>()?,
            shape,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            delta: config.delta,
        })
    }

    /// How much it holds.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Whether it was made for a trunk of this configuration.
    pub(crate) fn fits(&self, config: &TextConfig) -> bool {
        let kinds = self.layers.iter().map(|layer| match layer {
            Layer::Kv { .. } => LayerKind::FullAttention,
            Layer::State { .. } => LayerKind::LinearAttention,
        });
        kinds.eq(config.layer_kinds.iter().copied())
            && (self.kv_heads, self.head_dim) == (config.num_key_value_heads, config.head_dim)
            && self.delta == config.delta
    }

    pub(crate) fn kv(&self, layer: usize) -> Option<LayerKv<'_>> {
        let dims = [self.shape.pages * self.shape.page_len, self.kv_heads, self.head_dim];
        match &self.layers[layer] {
            Layer::Kv { k, v } => Some(LayerKv {
                k: k.view(0, self.shape.kv_dtype, dims),
                v: v.view(0, self.shape.kv_dtype, dims),
                page_len: self.shape.page_len,
            }),
            Layer::State { .. } => None,
        }
    }

    pub(crate) fn state(&self, layer: usize) -> Option<LayerState<'_>> {
        match (&self.layers[layer], &self.delta) {
            (Layer::State { conv, delta }, Some(d)) => Some(LayerState {
                conv: conv.view(0, DType::F32, [self.shape.states, d.conv_channels(), d.conv_kernel]),
                delta: delta.view(
                    0,
                    DType::F32,
                    [self.shape.states, d.num_value_heads, d.key_head_dim, d.value_head_dim],
                ),
            }),
            _ => None,
        }
    }

    fn states(&self) -> impl Iterator<Item = View<'_>> {
        (0..self.layers.len()).filter_map(|i| self.state(i)).flat_map(|s| [s.conv, s.delta])
    }

    /// Copies the states of slot `from` to slot `to`: a snapshot, or its restoring.
    ///
    /// # Errors
    /// When a slot does not exist.
    pub fn copy_state(&self, device: &dyn Device, from: usize, to: usize) -> Result<()> {
        let slots = self.shape.states;
        if from >= slots || to >= slots {
            return Err(ModelError::Batch(format!("state slots {from} and {to} of {slots}")));
        }
        if from == to {
            return Ok(());
        }
        let mut pass = Pass::new(device);
        pass.scope("copy of a state", None);
        for all in self.states() {
            pass.copy(Copy { from: all.rows(from..from + 1), to: all.rows(to..to + 1) });
        }
        Ok(pass.submit()?)
    }

    /// Keys and values of one slot of one layer, widened, `[kv_heads, head_dim]` each; `None` for a layer
    /// without them.
    pub fn read_kv(&self, device: &dyn Device, layer: usize, slot: usize) -> Result<Option<[Vec<f32>; 2]>> {
        let Some(kv) = self.kv(layer) else { return Ok(None) };
        let read = |all: View<'_>| -> Result<Vec<f32>> {
            let one = all.rows(slot..slot + 1);
            let mut bytes = vec![0; one.len_bytes().expect("whole blocks: the cache was made of them")];
            device.read(one, &mut bytes)?;
            let mut out = vec![0f32; one.shape().elements()];
            turbospark_tensor::widen_into(&bytes, one.dtype(), &mut out);
            Ok(out)
        };
        Ok(Some([read(kv.k)?, read(kv.v)?]))
    }

    /// Convolution tail and DeltaNet state of one slot of one layer; `None` for a layer without them.
    pub fn read_state(&self, device: &dyn Device, layer: usize, slot: usize) -> Result<Option<[Vec<f32>; 2]>> {
        let Some(s) = self.state(layer) else { return Ok(None) };
        let read = |all: View<'_>| device.read_f32(all.rows(slot..slot + 1));
        Ok(Some([read(s.conv)?, read(s.delta)?]))
    }
}
