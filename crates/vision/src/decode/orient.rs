//! Turning stored rows upright.

use image::metadata::Orientation;

/// Pixels along a side of the tiles that are turned one at a time, so that both sides stay in the cache.
const TILE: usize = 32;

/// The turned picture with its width and height.
pub(super) fn apply(data: Vec<u8>, width: usize, height: usize, orientation: Orientation) -> (Vec<u8>, usize, usize) {
    let (w, last_row, last) = (width as isize, (width * (height - 1)) as isize, (width * height - 1) as isize);
    // Output pixel (x, y) is input pixel `start + x * right + y * down`.
    let (start, right, down) = match orientation {
        Orientation::NoTransforms => return (data, width, height),
        Orientation::FlipHorizontal => (w - 1, -1, w),
        Orientation::FlipVertical => (last_row, 1, -w),
        Orientation::Rotate180 => (last, -1, -w),
        Orientation::Rotate90 => (last_row, -w, 1),
        Orientation::Rotate270 => (w - 1, w, -1),
        Orientation::Rotate90FlipH => (0, w, 1),
        Orientation::Rotate270FlipH => (last, -w, -1),
    };
    let (out_width, out_height) = match orientation {
        Orientation::FlipHorizontal | Orientation::FlipVertical | Orientation::Rotate180 => (width, height),
        _ => (height, width),
    };
    let (pixels, _) = data.as_chunks::<3>();
    let mut out = vec![[0; 3]; pixels.len()];
    for top in (0..out_height).step_by(TILE) {
        for left in (0..out_width).step_by(TILE) {
            for y in top..out_height.min(top + TILE) {
                let row = start + y as isize * down;
                for x in left..out_width.min(left + TILE) {
                    out[y * out_width + x] = pixels[(row + x as isize * right) as usize];
                }
            }
        }
    }
    (out.into_flattened(), out_width, out_height)
}
