use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use turbospark_device::{Buffer, LinearWeight, ScaledWeight, View};
use turbospark_tensor::{DType, ScaledForm, Shape};

/// A tensor of the checkpoint where a pass can reach it.
#[derive(Clone, Debug)]
pub struct Weight {
    home: Home,
    offset_bytes: usize,
    dtype: DType,
    shape: Shape,
}

impl Weight {
    /// The tensor of `shape` that starts `offset_bytes` into `buffer`.
    pub fn new(buffer: Arc<Buffer>, offset_bytes: usize, dtype: DType, shape: Shape) -> Self {
        Weight::at(Home::One(buffer), offset_bytes, dtype, shape)
    }

    pub(crate) fn at(home: Home, offset_bytes: usize, dtype: DType, shape: Shape) -> Self {
        Weight { home, offset_bytes, dtype, shape }
    }

    /// What an op takes.
    pub fn view(&self) -> View<'_> {
        self.home.buffer().view(self.offset_bytes, self.dtype, self.shape)
    }

    /// The same elements with other sides.
    pub fn reshaped(self, dims: &[usize]) -> Self {
        let shape = Shape::new(dims);
        assert_eq!(shape.elements(), self.shape.elements(), "{} reshaped to {shape}", self.shape);
        Weight { shape, ..self }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sides.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

/// Where a weight lies.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    One(Arc<Buffer>),
    Either(Arc<Spot>),
}

/// The two places of a unit that is streamed while memory is short: a slot that others use too, and one of its own. Its
/// tensors lie at the same offsets in both.
#[derive(Debug)]
pub(crate) struct Spot {
    pub slot: Arc<Buffer>,
    pub own: Arc<Buffer>,
    /// Changes between passes only: what is recorded holds the views of one place.
    pub in_own: AtomicBool,
}

impl Home {
    fn buffer(&self) -> &Buffer {
        match self {
            Home::One(buffer) => buffer,
            Home::Either(spot) if spot.in_own.load(Ordering::Acquire) => &spot.own,
            Home::Either(spot) => &spot.slot,
        }
    }
}

/// A linear weight or a table where a pass can reach it, in whatever form the checkpoint has.
#[derive(Clone, Debug)]
pub(crate) enum Matrix {
    /// One tensor of a float or block type.
    Plain(Weight),
    /// Codes and scales.
    Scaled(Box<ScaledTensors>),
}

/// A weight `[out, in]`, or several `[experts, out, in]`, as codes and scales apart.
#[derive(Clone, Debug)]
pub(crate) struct ScaledTensors {
    pub shape: Shape,
    pub codes: Weight,
    pub scales: Weight,
    pub biases: Option<Weight>,
    pub order: Option<Weight>,
    pub form: ScaledForm,
}

impl Matrix {
    /// The sides of the weight itself.
    pub fn shape(&self) -> Shape {
        match self {
            Matrix::Plain(w) => w.shape(),
            Matrix::Scaled(w) => w.shape,
        }
    }

    /// What an op takes.
    pub fn view(&self) -> LinearWeight<'_> {
        match self {
            Matrix::Plain(w) => w.view().into(),
            Matrix::Scaled(w) => w.weight(Weight::view).into(),
        }
    }

    /// Matrix `e` of `[E, out, in]`.
    pub fn of(&self, e: usize) -> LinearWeight<'_> {
        match self {
            Matrix::Plain(w) => one(w, e).into(),
            Matrix::Scaled(w) => w.weight(|w| one(w, e)).into(),
        }
    }

    /// The tensors that it is made of.
    pub fn tensors(&self) -> impl Iterator<Item = &Weight> {
        match self {
            Matrix::Plain(w) => [Some(w), None, None, None],
            Matrix::Scaled(w) => [Some(&w.codes), Some(&w.scales), w.biases.as_ref(), w.order.as_ref()],
        }
        .into_iter()
        .flatten()
    }
}

impl ScaledTensors {
    fn weight<'a>(&'a self, view: impl Fn(&'a Weight) -> View<'a>) -> ScaledWeight<'a> {
        let biases = self.biases.as_ref().map(&view);
        let order = self.order.as_ref().map(Weight::view);
        ScaledWeight { codes: view(&self.codes), scales: view(&self.scales), biases, order, form: self.form }
    }
}

/// Index `e` of `[E, a, b]`, as `[a, b]`.
fn one(w: &Weight, e: usize) -> View<'_> {
    let v = w.view();
    let (a, b) = (v.dim(1), v.dim(2));
    v.rows(e..e + 1).reshape([a, b])
}

/// A linear layer with a bias.
#[derive(Clone, Debug)]
pub(crate) struct Affine {
    pub weight: Matrix,
    pub bias: Weight,
}
