//! Every format and form that is read, against the same picture in its plainest form.

mod common;

use common::hex;
use sha2::{Digest, Sha256};
use turbospark_vision::{DecodeLimits, Decoded, ImageError, Note, decode};

const WIDTH: usize = 56;
const HEIGHT: usize = 40;

fn data(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn read(name: &str) -> Decoded {
    decode(&data(name), &DecodeLimits::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn pixels(name: &str) -> Vec<u8> {
    read(name).rgb.into_data()
}

/// The samples of `rgb.ppm` without a decoder.
fn plain() -> Vec<u8> {
    let file = data("rgb.ppm");
    file[file.len() - WIDTH * HEIGHT * 3..].to_vec()
}

fn mean_distance(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64
}

#[test]
fn lossless_forms_give_the_same_pixels() {
    for name in ["rgb.ppm", "rgb.bmp", "rgb_lzw.tif", "cmyk.tif", "pages.tif", "lossless.webp", "anim.webp", "apng.png"]
    {
        assert!(pixels(name) == plain(), "{name}");
    }
    let grey = pixels("grey.pgm");
    let file = data("grey.pgm");
    assert!(grey.iter().step_by(3).eq(&file[file.len() - WIDTH * HEIGHT..]));
    assert!(pixels("grey16.tif") == grey, "16-bit samples keep their high byte");
    for name in ["bi.bmp", "bilevel_g4.tif", "miniswhite_g4.tif"] {
        assert!(pixels(name) == pixels("bi.pbm"), "{name}");
    }
}

#[test]
fn lossy_forms_stay_close() {
    for (name, most) in [("q.jpg", 4.0), ("cmyk.jpg", 4.0), ("rgb_jpeg.tif", 8.0), ("lossy.webp", 8.0)] {
        let off = mean_distance(&pixels(name), &plain());
        assert!(off < most, "{name} is off by {off} on average");
    }
    assert!(pixels("prog.jpg") == pixels("q.jpg"), "progressive");
    assert!(pixels("restart.jpg") == pixels("q.jpg"), "restart markers");
}

#[test]
fn the_orientation_mark_is_applied_wherever_it_is_kept() {
    let stored = plain();
    // Mark 6: the first stored column, read upwards, is the first row.
    let upright: Vec<u8> = (0..WIDTH)
        .flat_map(|x| (0..HEIGHT).rev().map(move |y| (y * WIDTH + x) * 3))
        .flat_map(|at| stored[at..at + 3].to_vec())
        .collect();
    for name in ["exif.png", "exif.webp", "orient.tif"] {
        let got = read(name).rgb;
        assert_eq!((got.width(), got.height()), (HEIGHT, WIDTH), "{name}");
        assert!(got.data() == upright, "{name}");
    }
}

#[test]
fn an_orientation_mark_after_the_pixels_of_a_png_counts() {
    let file = data("exif.png");
    let chunk = |name: &[u8]| {
        let at = file.windows(4).position(|w| w == name).unwrap() - 4;
        let len = u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        at..at + 12 + len
    };
    let (exif, end) = (chunk(b"eXIf"), chunk(b"IEND"));
    let moved = [&file[..exif.start], &file[exif.end..end.start], &file[exif], &file[end]].concat();
    assert_eq!(decode(&moved, &DecodeLimits::default()).unwrap().rgb, read("exif.png").rgb);
}

#[test]
fn alpha_is_laid_on_white_whether_or_not_colour_was_multiplied_by_it() {
    assert!(pixels("alpha_lossless.webp") == pixels("assoc.tif"));
    assert!(hex(&Sha256::digest(pixels("assoc.tif"))).starts_with("40c1db48cb48693c"));
    assert!(hex(&Sha256::digest(pixels("trans.gif"))).starts_with("02d016451cea5fb2"));
    assert!(hex(&Sha256::digest(pixels("pal4.png"))).starts_with("9721c3c9f4372b55"));
}

#[test]
fn pages_and_frames_left_out_are_told() {
    assert_eq!(read("pages.tif").notes, [Note::FirstPageOnly { pages: 3 }]);
    assert_eq!(read("apng.png").notes, [Note::FirstFrameOnly { frames: 3 }]);
    assert_eq!(read("anim.webp").notes, [Note::FirstFrameOnly { frames: 2 }]);
    assert_eq!(read("anim.gif").notes, [Note::FirstFrameOnly { frames: 2 }]);
    assert_eq!(read("trans.gif").notes, []);
    assert_eq!(Note::FirstPageOnly { pages: 3 }.to_string(), "only the first of 3 pages was read");
}

#[test]
fn forms_that_are_not_read_are_refused_by_name() {
    for name in ["float.tif", "palette.tif"] {
        let e = decode(&data(name), &DecodeLimits::default()).unwrap_err();
        assert!(matches!(e, ImageError::UnsupportedFeature { format: "TIFF", .. }), "{name}: {e}");
    }
    for (start, name) in [
        (&b"%PDF-1.7\n"[..], "PDF"),
        (b"<?xml version=\"1.0\"?><svg/>", "SVG"),
        (b" \n<svg xmlns=''/>", "SVG"),
        (b"\0\0\0\x20ftypavif\0\0\0\0", "AVIF"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0", "HEIC"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "MP4"),
        (b"\xff\x0a\0\0", "JPEG XL"),
        (b"<!DOCTYPE html><html>", "HTML"),
    ] {
        let message = decode(start, &DecodeLimits::default()).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("not a supported"), "{message}");
    }
}

#[test]
fn a_file_cut_anywhere_in_its_first_picture_is_an_error() {
    for name in [
        "q.jpg",
        "prog.jpg",
        "restart.jpg",
        "pal4.png",
        "apng.png",
        "lossy.webp",
        "lossless.webp",
        "anim.webp",
        "rgb.bmp",
        "rgb.ppm",
        "bi.pbm",
        "rgb_lzw.tif",
        "rgb_jpeg.tif",
        "bilevel_g4.tif",
    ] {
        let file = data(name);
        for len in 0..file.len() {
            let cut = decode(&file[..len], &DecodeLimits::default());
            assert!(cut.is_err(), "{name} cut to {len} of {} bytes was accepted", file.len());
        }
    }
    // After its first frame is whole, that is all a GIF needs.
    let file = data("trans.gif");
    for len in 0..file.len() - 3 {
        assert!(decode(&file[..len], &DecodeLimits::default()).is_err(), "trans.gif cut to {len}");
    }
}

#[test]
fn a_cut_jpeg_that_was_given_a_new_end_is_an_error() {
    for name in ["q.jpg", "restart.jpg", "cmyk.jpg"] {
        let file = data(name);
        let scan = file.windows(2).position(|w| w == [0xff, 0xda]).unwrap() + 16;
        for len in scan..file.len() - 10 {
            let cut = [&file[..len], &[0xff, 0xd9]].concat();
            assert!(decode(&cut, &DecodeLimits::default()).is_err(), "{name} cut to {len} of {}", file.len());
        }
    }
    let cut = common::bytes("cases/inputs/s06_cut.jpg");
    let message = decode(&[&cut[..], &[0xff, 0xd9]].concat(), &DecodeLimits::default()).unwrap_err().to_string();
    assert!(message.contains("data is missing") && message.contains("blocks"), "{message}");
}

#[test]
fn a_jpeg_that_claims_more_than_it_can_hold_is_an_error() {
    let mut file = data("prog.jpg");
    let sof = file.windows(2).position(|w| w == [0xff, 0xc2]).unwrap();
    file[sof + 5..sof + 9].copy_from_slice(&[0x20, 0, 0x20, 0]);
    let message = decode(&file, &DecodeLimits::default()).unwrap_err().to_string();
    assert!(message.contains("8192x8192") && message.contains("data is missing"), "{message}");
}

#[test]
fn a_damaged_transparency_list_is_an_error_and_not_an_opaque_picture() {
    let mut file = common::bytes("cases/inputs/s02_palette_trns.png");
    let at = file.windows(4).position(|w| w == b"tRNS").unwrap();
    file[at + 4] ^= 1;
    let message = decode(&file, &DecodeLimits::default()).unwrap_err().to_string();
    assert!(message.contains("tRNS") && message.contains("CRC"), "{message}");
}
