//! How weights are stored, and the WGSL that reads them.
//!
//! Every format is one function, `w8`: eight elements of a row from the byte where the row starts. A kernel takes one
//! or two of them, under names of their own. What goes wrong unseen: bytes in the wrong order give plausible weights,
//! so `tests/formats.rs` holds every format against the exact dequantisation.

use std::fmt;

use turbospark_tensor::{Code, DType, ScaledForm, block};

/// How a weight is stored, as far as kernels differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    /// A float or block type.
    Plain(DType),
    /// Codes with scales, and perhaps biases, of the type.
    Scaled { form: ScaledForm, scales: DType, biased: bool },
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::Plain(dtype) => dtype.fmt(f),
            Format::Scaled { form, scales, biased } => {
                write!(f, "{form} {scales}{}", if *biased { " biased" } else { "" })
            }
        }
    }
}

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("../shaders/linear/", $name, ".wgsl"))
    };
}

/// The functions that all formats share.
pub(super) const EIGHT: &str = text!("eight");

impl Format {
    /// Bytes that a row of `k` elements takes.
    pub fn row_bytes(self, k: usize) -> usize {
        match self {
            Format::Plain(dtype) => dtype.bytes(k).expect("rows are whole blocks"),
            Format::Scaled { form, .. } => form.bytes(k),
        }
    }

    /// The bytes at whose multiples blocks start, if rows do.
    pub fn block_bytes(self) -> usize {
        match self {
            Format::Plain(dtype) => dtype.block().bytes,
            Format::Scaled { form, .. } => form.code().bits(),
        }
    }

    /// Whether its words are bound as vectors, where rows start at multiples of 16 bytes.
    pub fn is_wide(self, align: u32) -> bool {
        align == 16 && matches!(self, Format::Plain(DType::F32 | DType::F16 | DType::BF16))
    }

    /// The functions that read it, their names beginning with `prefix`: `{prefix}w8(at, r, i)` gives elements `i` to
    /// `i + 7` of row `r`, which starts at byte `at`.
    pub fn text(self, prefix: &str, align: u32) -> String {
        let mut text = String::new();
        if !self.is_wide(align) {
            text += &bytes("words", align);
        }
        match self {
            Format::Plain(dtype) => text += plain(dtype, self.is_wide(align)),
            Format::Scaled { form, biased, .. } => {
                text += &bytes("scales_words", 1).replace("scales_words_", "scales_");
                if biased {
                    text += &bytes("biases_words", 1).replace("biases_words_", "biases_");
                }
                text += values(form.code());
                text += if biased { text!("scaled_biased") } else { text!("scaled") };
            }
        }
        for (name, value) in self.constants() {
            text = text.replace(name, &format!("{value}u"));
        }
        text.replace('$', prefix)
    }

    /// Numbers that its functions have by name.
    fn constants(self) -> Vec<(&'static str, u32)> {
        let (form, scales) = match self {
            Format::Plain(dtype) => return grid_word(dtype).map(|word| ("$GRID", word)).into_iter().collect(),
            Format::Scaled { form, scales, .. } => (form, scales),
        };
        let scales = match scales {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::BF16 => 2,
            DType::F8_E8M0 => 3,
            _ => 4,
        };
        let whole = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        vec![
            ("$BITS", whole(form.code().bits())),
            ("$GROUP", whole(form.group())),
            ("$SHARED", whole(form.rows())),
            ("$SCALES", scales),
        ]
    }

    /// Whether it looks values up in the grids.
    pub fn has_grid(self) -> bool {
        matches!(self, Format::Plain(dtype) if grid_word(dtype).is_some())
    }
}

/// The formats that have a grid of their own; `IQ1_M` has that of `IQ1_S`.
const GRIDS: [DType; 6] = [DType::IQ1_S, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS, DType::IQ3_S];

/// The grids, one after the other, four values to a word.
pub(super) fn grids() -> Vec<u8> {
    GRIDS.iter().flat_map(|&d| block::grid(d).expect("it has one")).map(|v| v.cast_unsigned()).collect()
}

/// The word of [`grids`] at which the grid of a format begins.
fn grid_word(dtype: DType) -> Option<u32> {
    let own = if dtype == DType::IQ1_M { DType::IQ1_S } else { dtype };
    let before = GRIDS.iter().position(|&d| d == own)?;
    let bytes: usize = GRIDS[..before].iter().map(|&d| block::grid(d).map_or(0, <[i8]>::len)).sum();
    Some((bytes / 4) as u32)
}

/// Functions that read a buffer at any byte. `align` are the bytes at whose multiples words are asked for.
fn bytes(buffer: &str, align: u32) -> String {
    let functions = match buffer {
        "words" => text!("bytes").to_owned(),
        other => {
            let own = text!("bytes").replace("$words", &format!("${other}"));
            ["word", "pair", "half", "byte"]
                .iter()
                .fold(own, |text, f| text.replace(&format!("${f}("), &format!("${other}_{f}(")))
        }
    };
    functions.replace("ALIGN", &format!("{align}u"))
}

fn plain(dtype: DType, wide: bool) -> &'static str {
    match dtype {
        DType::F32 if wide => text!("formats/f32_wide"),
        DType::F16 if wide => text!("formats/f16_wide"),
        DType::BF16 if wide => text!("formats/bf16_wide"),
        DType::F32 => text!("formats/f32"),
        DType::F16 => text!("formats/f16"),
        DType::BF16 => text!("formats/bf16"),
        DType::Q8_0 => text!("formats/q8_0"),
        DType::Q4_0 => text!("formats/q4_0"),
        DType::Q4_1 => text!("formats/q4_1"),
        DType::Q5_0 => text!("formats/q5_0"),
        DType::Q5_1 => text!("formats/q5_1"),
        DType::Q2_K => text!("formats/q2_k"),
        DType::Q3_K => text!("formats/q3_k"),
        DType::Q4_K => concat!(text!("formats/k_group"), text!("formats/q4_k")),
        DType::Q5_K => concat!(text!("formats/k_group"), text!("formats/q5_k")),
        DType::Q6_K => text!("formats/q6_k"),
        DType::IQ4_NL => text!("formats/iq4_nl"),
        DType::IQ4_XS => text!("formats/iq4_xs"),
        DType::IQ3_S => text!("formats/iq3_s"),
        DType::IQ3_XXS => text!("formats/iq3_xxs"),
        DType::IQ2_S => text!("formats/iq2_s"),
        DType::IQ2_XS => text!("formats/iq2_xs"),
        DType::IQ2_XXS => text!("formats/iq2_xxs"),
        DType::IQ1_M => text!("formats/iq1_m"),
        DType::IQ1_S => text!("formats/iq1_s"),
        DType::TQ1_0 => text!("formats/tq1_0"),
        DType::TQ2_0 => text!("formats/tq2_0"),
        DType::MXFP4 => text!("formats/mxfp4"),
        other => unreachable!("{other} is no weight"),
    }
}

fn values(code: Code) -> &'static str {
    match code {
        Code::Unsigned(2) => text!("formats/scaled_unsigned2"),
        Code::Unsigned(3) => text!("formats/scaled_unsigned3"),
        Code::Unsigned(4) => text!("formats/scaled_unsigned4"),
        Code::Unsigned(5) => text!("formats/scaled_unsigned5"),
        Code::Unsigned(6) => text!("formats/scaled_unsigned6"),
        Code::Unsigned(_) => text!("formats/scaled_unsigned8"),
        Code::Signed8 => text!("formats/scaled_signed8"),
        Code::E2M1 => text!("formats/scaled_e2m1"),
        Code::E4M3 => text!("formats/scaled_e4m3"),
    }
}
