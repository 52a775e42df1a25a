//! What becomes of a tensor's rows on the way from one file to another.

use turbospark_tensor::DType;

/// Type, order and values of a tensor once it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    pub dtype: DType,
    pub rows: Order,
    pub columns: Option<Tiling>,
    pub value: Meaning,
}

impl Change {
    /// Another type, or the same, and nothing else.
    pub fn to(dtype: DType) -> Self {
        Change { dtype, rows: Order::Stored, columns: None, value: Meaning::Same }
    }
}

/// What is done to each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Same,
    /// A norm's `w` becomes the factor `1 + w`.
    PlusOne,
    /// `A_log` becomes the decay `-exp(A_log)`.
    NegatedExp,
}

impl Meaning {
    pub fn apply(self, values: &mut [f32]) {
        match self {
            Meaning::Same => {}
            Meaning::PlusOne => values.iter_mut().for_each(|v| *v += 1.0),
            Meaning::NegatedExp => values.iter_mut().for_each(|v| *v = -v.exp()),
        }
    }
}

/// DeltaNet's value heads from an order by key head (`k * r + j`) to one by place in the group (`j * K + k`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Key heads.
    pub keys: usize,
    /// Value heads of each.
    pub values_each: usize,
    /// Rows or columns of a value head.
    pub width: usize,
}

impl Tiling {
    /// Where row or column `i` comes from.
    pub fn source(&self, i: usize) -> usize {
        let (head, at) = (i / self.width, i % self.width);
        let (j, k) = (head / self.keys, head % self.keys);
        (k * self.values_each + j) * self.width + at
    }
}

/// In which order rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Stored,
    /// Rows from `first` on are value heads.
    Tiled {
        first: usize,
        tiling: Tiling,
    },
    /// In each head of `dim` rows, halves `(i, i + dim / 2)` become pairs `(2 i, 2 i + 1)`.
    Pairs {
        dim: usize,
    },
    /// Of a patch embedding `[.., frames, h, w]` with rows of `w`, those of one frame.
    Frame {
        frame: usize,
        frames: usize,
        height: usize,
    },
}

impl Order {
    /// Number of rows that are written, of `stored`.
    pub fn rows(&self, stored: usize) -> usize {
        match self {
            Order::Frame { frames, .. } => stored / frames,
            _ => stored,
        }
    }

    /// Which stored row becomes row `r`.
    pub fn source(&self, r: usize) -> usize {
        match *self {
            Order::Stored => r,
            Order::Tiled { first, tiling } => r.checked_sub(first).map_or(r, |r| first + tiling.source(r)),
            Order::Pairs { dim } => {
                let (head, at) = (r / dim, r % dim);
                head * dim + at / 2 + (at % 2) * (dim / 2)
            }
            Order::Frame { frame, frames, height } => (r / height * frames + frame) * height + r % height,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_those_of_the_format() {
        // Value heads 0, 1 of key head 0 and 2, 3 of key head 1, two rows each, after one row of something else.
        let tiling = Tiling { keys: 2, values_each: 2, width: 2 };
        let tiled = Order::Tiled { first: 1, tiling };
        assert_eq!((0..9).map(|r| tiled.source(r)).collect::<Vec<_>>(), [0, 1, 2, 5, 6, 3, 4, 7, 8]);
        let pairs = Order::Pairs { dim: 4 };
        assert_eq!((0..8).map(|r| pairs.source(r)).collect::<Vec<_>>(), [0, 2, 1, 3, 4, 6, 5, 7]);
        let frame = Order::Frame { frame: 1, frames: 2, height: 3 };
        assert_eq!((0..frame.rows(12)).map(|r| frame.source(r)).collect::<Vec<_>>(), [3, 4, 5, 9, 10, 11]);
    }
}
