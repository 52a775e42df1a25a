use crate::ImageError;

/// An upright, opaque picture: rows from the top, three 8-bit samples a pixel.
#[derive(Clone, PartialEq, Eq)]
pub struct Rgb {
    width: usize,
    height: usize,
    data: Vec<u8>,
}

impl Rgb {
    /// A picture from its samples; neither side may be zero and `data` must hold `width * height * 3`.
    pub fn new(width: usize, height: usize, data: Vec<u8>) -> Result<Self, ImageError> {
        if width == 0 || height == 0 {
            return Err(ImageError::NoPixels { width, height });
        }
        let expected = width.checked_mul(height).and_then(|n| n.checked_mul(3));
        if expected != Some(data.len()) {
            return Err(ImageError::WrongLength { width, height, got: data.len() });
        }
        Ok(Rgb { width, height, data })
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The samples, `[height, width, 3]`.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The samples without a copy.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }
}

impl std::fmt::Debug for Rgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rgb({}x{})", self.width, self.height)
    }
}
