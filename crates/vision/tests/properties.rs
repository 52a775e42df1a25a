//! What holds for every size.

mod common;

use proptest::prelude::*;
use turbospark_vision::{
    DecodeLimits, Grid, PatchLayout, Picture, PixelScale, Rgb, preprocess_frames, resize, smart_resize, write_patches,
};
use turbospark_vision::{SizeError, VideoConfig};

const LAYOUT: PatchLayout = PatchLayout { patch_size: 2, merge_size: 2, temporal_patch_size: 2 };
/// Leaves samples as they are.
const IDENTITY: PixelScale = PixelScale { mean: [0.0; 3], std: [1.0; 3], rescale: None, normalize: false };

/// The resize as the rule is written, one sample at a time.
fn resize_plainly(source: &Rgb, height: usize, width: usize) -> Vec<u8> {
    let (w, h) = (source.width(), source.height());
    let columns = axis(source.data(), [h, w], width, |y, x, c| (y * w + x) * 3 + c);
    if h == height {
        return columns;
    }
    let turned = axis(&columns, [width, h], height, |x, y, c| (y * width + x) * 3 + c);
    (0..height)
        .flat_map(|y| (0..width).map(move |x| (x * height + y) * 3))
        .flat_map(|i| turned[i..i + 3].to_vec())
        .collect()
}

/// Resizes the second side of `[outer, from]` samples found by `at`; the result is `[outer, to, 3]`.
fn axis(data: &[u8], [outer, from]: [usize; 2], to: usize, at: impl Fn(usize, usize, usize) -> usize) -> Vec<u8> {
    let cubic = |x: f64| match x.abs() {
        x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
        _ => 0.0,
    };
    if from == to {
        let samples = (0..outer).flat_map(|o| (0..from).flat_map(move |i| [(o, i, 0), (o, i, 1), (o, i, 2)]));
        return samples.map(|(o, i, c)| data[at(o, i, c)]).collect();
    }
    let scale = from as f64 / to as f64;
    let (support, inverse) = if scale >= 1.0 { (2.0 * scale, 1.0 / scale) } else { (2.0, 1.0) };
    let taps: Vec<Vec<(usize, f64)>> = (0..to)
        .map(|i| {
            let centre = scale * (i as f64 + 0.5);
            let first = ((centre - support + 0.5) as i64).max(0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let raw: Vec<f64> = (first..end).map(|j| cubic((j as f64 + 0.5 - centre) * inverse)).collect();
            let sum: f64 = raw.iter().sum();
            (first..end).zip(raw.iter().map(|w| w / sum)).collect()
        })
        .collect();
    let top = taps.iter().flatten().map(|&(_, w)| w).fold(0.0, f64::max);
    let mut bits = 0;
    while bits < 22 && ((0.5 + top * f64::from(1 << (bits + 1))) as i64) < 1 << 15 {
        bits += 1;
    }
    let weight = |w: f64| (w * f64::from(1 << bits) + if w >= 0.0 { 0.5 } else { -0.5 }) as i64;
    let mut out = Vec::with_capacity(outer * to * 3);
    for o in 0..outer {
        for tap in &taps {
            for c in 0..3 {
                let sum: i64 = tap.iter().map(|&(j, w)| weight(w) * i64::from(data[at(o, j, c)])).sum();
                out.push(((sum + (1 << (bits - 1))) >> bits).clamp(0, 255) as u8);
            }
        }
    }
    out
}

fn picture(side: std::ops::Range<usize>) -> impl Strategy<Value = Rgb> {
    (side.clone(), side).prop_flat_map(|(w, h)| {
        proptest::collection::vec(any::<u8>(), w * h * 3).prop_map(move |data| Rgb::new(w, h, data).unwrap())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn the_fast_resize_is_the_plain_one(source in picture(1..48), height in 1usize..80, width in 1usize..80) {
        let plain = resize_plainly(&source, height, width);
        for threads in [1, 2, 5, 1000] {
            let fast = resize(&source, height, width, threads).unwrap();
            prop_assert_eq!(fast.data(), &plain[..], "{} threads", threads);
        }
    }

    #[test]
    fn a_sized_side_is_a_multiple_of_the_factor(h in 0usize..70_000, w in 0usize..70_000, max in 1024usize..1 << 24) {
        match smart_resize(h, w, 32, 1024, max) {
            Ok((rh, rw)) => prop_assert!(rh > 0 && rw > 0 && rh % 32 == 0 && rw % 32 == 0),
            Err(SizeError::ZeroSide { .. }) => prop_assert!(h == 0 || w == 0),
            Err(SizeError::AspectRatio { .. }) => prop_assert!(h.max(w) > 200 * h.min(w)),
            Err(e) => prop_assert!(false, "{}", e),
        }
    }

    #[test]
    fn patches_hold_every_sample_once_in_its_place(t in 1usize..4, bh in 1usize..4, bw in 1usize..5) {
        let grid = Grid { t, h: bh * 2, w: bw * 2 };
        let (height, width) = (grid.h * 2, grid.w * 2);
        // Samples of different frames differ; inside a frame they count up to 255 and on.
        let frames: Vec<Vec<u8>> = (0..t * 2)
            .map(|f| (0..height * width * 3).map(|i| ((i * 7 + f * 101) % 256) as u8).collect())
            .collect();
        let views: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let mut out = vec![-1.0; grid.patches() * LAYOUT.patch_len()];
        write_patches(&views, grid, LAYOUT, &IDENTITY, &mut out).unwrap();
        // Walk the patches by the rule: block row, block column, row, column, channel, frame, y, x.
        let mut at = 0;
        for g in 0..t {
            for (by, bx, r, c) in itertools(bh, bw) {
                for channel in 0..3 {
                    for slot in 0..2 {
                        for (y, x) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                            let (py, px) = ((by * 2 + r) * 2 + y, (bx * 2 + c) * 2 + x);
                            let sample = frames[g * 2 + slot][(py * width + px) * 3 + channel];
                            prop_assert_eq!(out[at], f32::from(sample), "value {}", at);
                            at += 1;
                        }
                    }
                }
            }
        }
        prop_assert_eq!(at, out.len());
    }
}

/// Block row, block column, row in block, column in block, the last fastest.
fn itertools(bh: usize, bw: usize) -> Vec<(usize, usize, usize, usize)> {
    let mut order = Vec::new();
    for by in 0..bh {
        for bx in 0..bw {
            order.extend([(by, bx, 0, 0), (by, bx, 0, 1), (by, bx, 1, 0), (by, bx, 1, 1)]);
        }
    }
    order
}

#[test]
fn buffers_and_sides_that_do_not_fit_are_errors() {
    let grey = Rgb::new(64, 64, vec![9; 64 * 64 * 3]).unwrap();
    assert!(Rgb::new(64, 64, vec![9; 5]).is_err());
    assert!(Rgb::new(0, 64, vec![]).is_err());
    assert!(Rgb::new(usize::MAX, usize::MAX, vec![]).is_err());
    assert!(resize(&grey, 0, 4, 1).is_err());
    let picture = Picture::from_rgb(grey, &common::published(), &DecodeLimits::default()).unwrap();
    let message = picture.write_patches(&mut [0.0; 7]).unwrap_err().to_string();
    assert!(message.contains("holds 7") && message.contains("393216"), "{message}");
}

#[test]
fn an_odd_last_frame_is_repeated() {
    let config = VideoConfig::from_json(
        r#"{"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5], "size": {"shortest_edge": 4096, "longest_edge": 25165824}}"#,
    )
    .unwrap();
    let frame = |v: u8| Rgb::new(64, 64, vec![v; 64 * 64 * 3]).unwrap();
    let odd = preprocess_frames(&[frame(1), frame(2), frame(3)], &config, 1).unwrap();
    let even = preprocess_frames(&[frame(1), frame(2), frame(3), frame(3)], &config, 1).unwrap();
    assert_eq!(odd.grid, even.grid);
    assert_eq!(odd.patches(), even.patches());
}
