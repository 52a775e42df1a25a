//! What sequences leave behind: keys and values by page, DeltaNet states by slot.

use turbospark_device::op::Copy;
use turbospark_device::{Buffer, Device, Pass, Precision, View};
use turbospark_tensor::DType;

use crate::blocks::attention::LayerKv;
use crate::blocks::delta::LayerState;
use crate::config::{DeltaConfig, LayerKind, TextConfig};
use crate::{ModelError, Result};

/// How much a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Pages of the KV cache, shared by all sequences.
    pub pages: usize,
    /// Tokens a page.
    pub page_len: usize,
    /// Slots for DeltaNet states: one a live sequence and one a snapshot.
    pub states: usize,
    /// Element type of keys and values.
    pub kv_dtype: DType,
}

impl CacheShape {
    /// Tokens a page: the spacing at which splits of a KV range start.
    pub const PAGE_LEN: usize = 64;

    /// Room for `sequences` sequences of up to `tokens` tokens each.
    pub fn for_sequences(sequences: usize, tokens: usize, precision: Precision) -> Self {
        CacheShape {
            pages: sequences * tokens.div_ceil(Self::PAGE_LEN),
            page_len: Self::PAGE_LEN,
            states: sequences,
            kv_dtype: match precision {
                Precision::F32 => DType::F32,
                Precision::Auto => DType::F16,
            },
        }
    }

    /// Bytes that one token takes in all layers.
    pub fn bytes_per_token(&self, config: &TextConfig) -> usize {
        let attention = config.layer_kinds.iter().filter(|&&k| k == LayerKind::FullAttention).count();
        2 * attention * config.num_key_value_heads * config.head_dim * self.kv_dtype.size()
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
    /// The device's, when it has no room.
    pub fn new(device: &dyn Device, config: &TextConfig, shape: CacheShape) -> Result<Self> {
        let kv_bytes =
            shape.pages * shape.page_len * config.num_key_value_heads * config.head_dim * shape.kv_dtype.size();
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
            let mut bytes = vec![0; one.shape().elements() * one.dtype().size()];
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
