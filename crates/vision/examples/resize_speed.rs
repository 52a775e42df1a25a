//! Times the resize of a 12-megapixel photo: `cargo run --release -p turbospark-vision --example resize_speed`.

use std::time::Instant;

use turbospark_vision::{DecodeLimits, ImageConfig, Picture, Rgb, resize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (width, height) = (4000, 3000);
    let noise = (0..width * height * 3).map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let photo = Rgb::new(width, height, noise)?;
    for (h, w) in [(3008, 4000), (3488, 4640), (1760, 2336), (864, 1184), (192, 256)] {
        for threads in [1, 2] {
            let times: Vec<_> = (0..5)
                .map(|_| {
                    let start = Instant::now();
                    resize(&photo, h, w, threads).map(|_| start.elapsed())
                })
                .collect::<Result<_, _>>()?;
            println!(
                "resize {width}x{height} -> {w}x{h}, {threads} threads: {:?}",
                times.iter().min().expect("five runs")
            );
        }
    }
    let config = ImageConfig::from_json(
        r#"{"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5], "size": {"shortest_edge": 65536, "longest_edge": 16777216}}"#,
    )?;
    let start = Instant::now();
    let picture = Picture::from_rgb(photo, &config, &DecodeLimits::default())?;
    println!("size and digest: {:?}", start.elapsed());
    let start = Instant::now();
    let patches = picture.patches();
    println!("{} patch values: {:?}", patches.len(), start.elapsed());
    Ok(())
}
