use std::fmt;

use turbospark_tensor::DType;

use crate::{Device, DeviceError, Op, View, op};

/// Where in a model an op was recorded; it heads the error when one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The part, such as `decoder layer`.
    pub part: &'static str,
    /// Which of them, where there are several.
    pub index: Option<usize>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(i) => write!(f, "{} {i}", self.part),
            None => f.write_str(self.part),
        }
    }
}

/// An op that passed its checks, with the place that recorded it.
#[derive(Debug)]
pub struct Recorded<'a> {
    /// Where in the model.
    pub scope: Scope,
    /// What to do.
    pub op: Op<'a>,
}

/// Receives the values of tapped views, in the order they were tapped.
pub trait TapSink {
    /// `values` are those of the view at that point of the pass, dense, with its sides.
    fn tap(&mut self, name: &'static str, index: Option<usize>, dims: &[usize], values: Vec<f32>);
}

/// A view to hand out once the ops before `at` have run.
struct Tap<'a> {
    at: usize,
    name: &'static str,
    index: Option<usize>,
    view: View<'a>,
}

/// Ops recorded for one submission.
///
/// Recording never fails: the pass keeps the first error and [`submit`](Pass::submit) returns it.
pub struct Pass<'a> {
    device: &'a dyn Device,
    ops: Vec<Recorded<'a>>,
    taps: Vec<Tap<'a>>,
    scope: Scope,
    error: Option<DeviceError>,
    keep_taps: bool,
}

impl<'a> Pass<'a> {
    /// An empty pass on `device`.
    pub fn new(device: &'a dyn Device) -> Self {
        let scope = Scope { part: "pass", index: None };
        Pass { device, ops: Vec::new(), taps: Vec::new(), scope, error: None, keep_taps: false }
    }

    /// Whether [`tap`](Pass::tap) records anything: set it when the pass ends in [`submit_to`](Pass::submit_to).
    pub fn keep_taps(mut self, keep: bool) -> Self {
        self.keep_taps = keep;
        self
    }

    /// Names the part of the model that records from here on.
    pub fn scope(&mut self, part: &'static str, index: impl Into<Option<usize>>) {
        self.scope = Scope { part, index: index.into() };
    }

    /// Hands the values that `view` (dense; f32, or i32 below 2^24) has at this point to the sink, where taps are
    /// kept.
    pub fn tap(&mut self, name: &'static str, index: impl Into<Option<usize>>, view: View<'a>) {
        if self.keep_taps {
            self.taps.push(Tap { at: self.ops.len(), name, index: index.into(), view });
        }
    }

    /// Records an op after checking its views.
    pub fn record(&mut self, op: Op<'a>) {
        if self.error.is_some() {
            return;
        }
        match op.check() {
            Ok(()) => self.ops.push(Recorded { scope: self.scope, op }),
            Err(message) => {
                self.error = Some(DeviceError::Op { scope: self.scope.to_string(), op: op.name(), message });
            }
        }
    }

    /// Runs what was recorded, in order.
    ///
    /// # Errors
    /// The first error of recording, with the op's name and scope, else the device's.
    pub fn submit(self) -> Result<(), DeviceError> {
        self.submit_to(None)
    }

    /// [`submit`](Pass::submit), delivering tapped views to `sink`. Taps split the submission and change no
    /// bit of it.
    pub fn submit_to(self, sink: Option<&mut dyn TapSink>) -> Result<(), DeviceError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut done = 0;
        if let Some(sink) = sink {
            for tap in &self.taps {
                self.device.run(&self.ops[done..tap.at])?;
                done = tap.at;
                let mut values = self.device.read_f32(tap.view)?;
                if tap.view.dtype() == DType::I32 {
                    values.iter_mut().for_each(|v| *v = v.to_bits().cast_signed() as f32);
                }
                sink.tap(tap.name, tap.index, tap.view.dims(), values);
            }
        }
        self.device.run(&self.ops[done..])
    }
}

macro_rules! record {
    ($($method:ident: $op:ident,)*) => {
        impl<'a> Pass<'a> {
            $(
                #[doc = concat!("Records a [`", stringify!($op), "`](op::", stringify!($op), ").")]
                pub fn $method(&mut self, op: op::$op<'a>) {
                    self.record(Op::$op(op));
                }
            )*
        }
    };
}

record! {
    gather: Gather,
    copy: Copy,
    zero: Zero,
    matmul: Matmul,
    gated_matmul: GatedMatmul,
    rms_norm: RmsNorm,
    layer_norm: LayerNorm,
    rope: Rope,
    attention: Attention,
    store_kv: StoreKv,
    paged_attention: PagedAttention,
    causal_conv: CausalConv,
    delta_gates: DeltaGates,
    delta_scan: DeltaScan,
    sigmoid_gate: SigmoidGate,
    router: Router,
    experts: Experts,
    acquire: Acquire,
    release: Release,
}
