use std::fmt;

/// The sides of a tensor, outermost first; at most [`Shape::MAX_RANK`] of them.
///
/// Copied freely: it lives in views, and views live in ops.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; Shape::MAX_RANK],
    rank: u8,
}

/// A list of sides that no shape holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// More sides than [`Shape::MAX_RANK`].
    #[error("{0} dimensions, at most {max} are supported", max = Shape::MAX_RANK)]
    Rank(usize),
    /// The product of the sides leaves `usize`.
    #[error("{0:?} has more elements than this machine can address")]
    Elements(Vec<usize>),
}

impl Shape {
    /// A convolution weight has five sides, `[out, channels, frames, height, width]`.
    pub const MAX_RANK: usize = 5;

    /// A shape from sides that come from a file; every product is checked.
    pub fn try_new(dims: &[usize]) -> Result<Self, ShapeError> {
        if dims.len() > Self::MAX_RANK {
            return Err(ShapeError::Rank(dims.len()));
        }
        let product = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if product.is_none() {
            return Err(ShapeError::Elements(dims.to_vec()));
        }
        let mut shape = Shape { dims: [1; Self::MAX_RANK], rank: dims.len() as u8 };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// A shape from sides that the program chose.
    ///
    /// # Panics
    /// Where [`Shape::try_new`] gives an error.
    pub fn new(dims: &[usize]) -> Self {
        match Self::try_new(dims) {
            Ok(shape) => shape,
            Err(e) => panic!("{e}"),
        }
    }

    /// The sides, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Number of sides.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Product of all sides.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The innermost side; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.dims()).finish()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape::new(&dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_from_a_file_is_checked() {
        assert!(matches!(Shape::try_new(&[usize::MAX, 2]), Err(ShapeError::Elements(_))));
        assert!(matches!(Shape::try_new(&[1; 6]), Err(ShapeError::Rank(6))));
        assert_eq!(Shape::try_new(&[]).unwrap().elements(), 1);
        assert_eq!(Shape::from([3, 0, 2]).elements(), 0);
        assert_eq!(Shape::from([3, 4]).to_string(), "[3, 4]");
    }
}
