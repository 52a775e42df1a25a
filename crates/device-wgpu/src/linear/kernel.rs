//! Which kernel a layer takes, and its text.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::format::{EIGHT, Format};
use super::matrix::Units;
use super::normed::Kind;
use crate::kernel::Source;
use crate::template::expand;

/// The form of a kernel's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// Decode rows and an `[out, in]` weight: outputs and rows of a workgroup, its threads, and lanes of a subgroup where
    /// they add up.
    Rows { outputs: u32, batch: u32, threads: u32, subgroup: u32 },
    /// Decode rows and an `[in, out]` weight.
    Columns { batch: u32 },
    /// Prompt rows: sixteenths of the rows and outputs of a tile.
    Tile { m: u32, n: u32 },
    /// Prompt rows on matrix units.
    Matrix(Units),
    /// Rows of a table.
    Gather { weighted: bool, add: bool, all: bool },
}

/// Where a kernel's rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Routed {
    /// They are rows of `x`.
    No,
    /// Rows and their experts: the list tells the expert of a slot.
    Ids,
    /// The same, of one expert: the list tells the slot.
    Slots,
}

/// All that a kernel's text depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Variant {
    pub shape: Shape,
    /// The weight, and its alignment.
    pub a: (Format, u32),
    pub b: Option<(Format, u32)>,
    /// More weights that decode rows are multiplied by, each with outputs of its own.
    pub more: [Option<(Format, u32)>; 3],
    pub in_out: bool,
    /// Whether rows end within eight elements.
    pub tail: bool,
    /// Whether they end with a step through workgroup memory. A load under a condition waits for the one before.
    pub whole: bool,
    pub wide_x: bool,
    pub routed: Routed,
    pub bias: bool,
    pub residual: bool,
    pub activation: u32,
    /// The norm that decode rows begin with.
    pub norm: Option<Kind>,
}

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("../shaders/linear/", $name, ".wgsl"))
    };
}

/// What the names of more weights begin with.
const MORE: [&str; 3] = ["c_", "d_", "e_"];

/// Threads of the kernel for `[in, out]` weights.
const COLUMN_THREADS: u32 = 128;

impl Variant {
    /// The kernel, written out on first use and kept: there are as many as a model has kinds of layers.
    pub fn source(self) -> &'static Source {
        static KNOWN: LazyLock<Mutex<HashMap<Variant, &'static Source>>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = known.len();
        known.entry(self).or_insert_with(|| {
            let name = match self.shape {
                Shape::Rows { .. } => "rows",
                Shape::Columns { .. } => "columns",
                Shape::Tile { .. } => "tile",
                Shape::Matrix(_) => "matrix",
                Shape::Gather { .. } => "gather",
            };
            let name = format!("linear {name} {} #{number}", self.a.0).leak();
            Box::leak(Box::new(Source { name, text: self.text().leak(), includes: &[] }))
        })
    }

    fn text(self) -> String {
        let (gated, routed) = (self.b.is_some(), self.routed != Routed::No);
        let parts = 1 + self.more.iter().flatten().count() as u32;
        let mut names = vec![
            ("GATED", gated.into()),
            ("ROUTED", routed.into()),
            ("ROUTED_IDS", (self.routed == Routed::Ids).into()),
            ("ROUTED_SLOTS", (self.routed == Routed::Slots).into()),
            ("IN_OUT", self.in_out.into()),
            ("TAIL", self.tail.into()),
            ("WIDE_X", self.wide_x.into()),
            ("BIAS", self.bias.into()),
            ("RESIDUAL", self.residual.into()),
            ("PARTS", parts),
            ("MANY", (parts > 1).into()),
            ("NORMED", self.norm.is_some().into()),
        ];
        let each = 1 + u32::from(gated);
        let (constants, kernel) = match self.shape {
            Shape::Rows { outputs, batch, threads, subgroup } => {
                names.extend([("ROWS", outputs), ("BATCH", batch), ("SUBGROUPS", u32::from(subgroup > 0))]);
                let count = batch * each * if subgroup > 0 { outputs } else { 1 };
                let parts = count * threads.checked_div(subgroup).unwrap_or(threads + 16);
                let mut numbers =
                    vec![("ROWS", outputs), ("BATCH", batch), ("THREADS", threads), ("COUNT", count), ("PARTS", parts)];
                if let Some(norm) = self.norm {
                    let groups = threads.checked_div(subgroup).unwrap_or(1);
                    numbers.extend([("WG", threads), ("ONE_PLUS", norm.one_plus.into()), ("SUMS", batch * groups)]);
                }
                (numbers, text!("rows"))
            }
            Shape::Columns { batch } => {
                names.push(("BATCH", batch));
                let parts = 2 * COLUMN_THREADS * batch * each;
                (vec![("BATCH", batch), ("THREADS", COLUMN_THREADS), ("PARTS", parts)], text!("columns"))
            }
            Shape::Tile { m, n } => {
                names.extend([("TM", m), ("TN", n)]);
                (vec![("BM", 16 * m), ("BN", 16 * n)], text!("tile"))
            }
            Shape::Matrix(units) => {
                let Units { side, m, n, across, depth, vectors } = units;
                let ([rows, outputs], threads) = (units.tile_sides(), units.threads());
                // A thread reads four elements of x at a time, and eight of a weight.
                let (fours, eights) = (rows * depth / 4, outputs * depth / 8);
                names.extend([("MI", m), ("NI", n), ("STEPS", depth / side), ("VECTORS", vectors.into())]);
                names.extend([("EACH_X", fours / threads), ("EACH_W", eights / threads)]);
                names.extend([
                    ("SIDE", side),
                    ("EACH", each),
                    ("LEFT", side * side / 32),
                    ("WHOLE", self.whole.into()),
                ]);
                let sides = [("MI", m), ("NI", n), ("SIDE", side), ("EACH", each), ("ACROSS", across), ("BK", depth)];
                (sides.to_vec(), text!("matrix"))
            }
            Shape::Gather { weighted, add, all } => {
                names.extend([("WEIGHTED", weighted.into()), ("ADD", add.into()), ("ALL", all.into())]);
                (Vec::new(), text!("gather"))
            }
        };
        let mut text = format!("const ACTIVATION: u32 = {}u;\n", self.activation);
        for (name, value) in constants {
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        }
        text += &expand(EIGHT, &names);
        text += &self.a.0.text("a_", self.a.1);
        if let Some((format, align)) = self.b {
            text += &format.text("b_", align);
        }
        for ((format, align), prefix) in self.more.into_iter().flatten().zip(MORE) {
            text += &format.text(prefix, align);
        }
        // Weights by number, for kernels that are written out for several.
        let numbered: Vec<&str> = match self.shape {
            Shape::Rows { .. } => ["a_"].into_iter().chain(MORE).take(parts as usize).collect(),
            Shape::Matrix(_) => ["a_", "b_"].into_iter().take(each as usize).collect(),
            _ => Vec::new(),
        };
        for (q, prefix) in numbered.iter().enumerate() {
            let _ = writeln!(text, "fn w8_{q}(at: u32, r: u32, i: u32) -> Eight {{ return {prefix}w8(at, r, i); }}");
        }
        if !matches!(self.shape, Shape::Gather { .. }) {
            text += include_str!("../shaders/activation.wgsl");
            text += text!("params");
            text += &expand(text!("finish"), &names);
            if self.norm.is_some() {
                text += include_str!("../shaders/sum.wgsl");
                text += &expand(include_str!("../shaders/row_squares.wgsl"), &names);
            }
            if !matches!(self.shape, Shape::Matrix(_)) {
                text += &expand(text!("vectors"), &names);
            }
        }
        text + &expand(kernel, &names)
    }
}
