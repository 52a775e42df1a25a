//! Experts that are stored together as codes with scales, in a way that no op takes.
//!
//! `gate_up_proj [experts, 2 width, hidden]` and `down_proj [experts, hidden, width]` are taken as they lie, unless a scale
//! reaches over the border between gate and up; stored the other way round, `[experts, hidden, 2 width]` and
//! `[experts, width, hidden]`, they are not. Such tensors become one matrix an expert, under the names of experts that
//! are stored one by one: an expert is then still read alone, and still in the bytes of its codes.
//!
//! Which way round they are stored is told by both shapes together, which no model can have both ways.

use turbospark_tensor::{ScaledForm, Shape};

use super::{Raw, write_floats};
use crate::checkpoint::Entry;
use crate::{Made, Piece, Place, Result, Scaled};

/// Takes all such tensors apart.
pub(super) fn read(raw: &mut Raw<'_>) -> Result<()> {
    for stem in raw.stems(".experts.gate_up_proj") {
        let names = ["gate_up_proj", "down_proj"].map(|part| format!("{stem}.experts.{part}"));
        let [Some(gate_up), Some(down)] = names.each_ref().map(|name| Stack::of(raw.table.get(name))) else { continue };
        let ([a, b], [c, d]) = (gate_up.sides, down.sides);
        let (width, turned) = match () {
            () if a == 2 * d && b == c => (d, false),
            () if b == 2 * c && a == d => (c, true),
            // The loader has the words for it.
            () => continue,
        };
        if gate_up.experts != down.experts || !turned && width.is_multiple_of(gate_up.form.rows()) {
            continue;
        }
        names.iter().for_each(|name| _ = raw.table.remove(name));
        let hidden = if turned { d } else { c };
        for e in 0..gate_up.experts {
            let parts = [
                ("gate_proj", &gate_up, 0, width),
                ("up_proj", &gate_up, width, width),
                ("down_proj", &down, 0, hidden),
            ];
            for (part, stack, first, rows) in parts {
                raw.put_entry(format!("{stem}.experts.{e}.{part}.weight"), stack.matrix(e, first, rows, turned))?;
            }
        }
    }
    Ok(())
}

/// Matrices of one form, one after the other.
struct Stack {
    experts: usize,
    /// As they are stored.
    sides: [usize; 2],
    codes: Place,
    scales: Place,
    form: ScaledForm,
}

impl Stack {
    fn of(entry: Option<&Entry>) -> Option<Self> {
        let Some(Entry::Scaled(Scaled { shape, codes, scales, biases: None, order: None, form })) = entry else {
            return None;
        };
        let (&[experts, a, b], Piece::Place(codes), Piece::Place(scales)) = (shape.dims(), codes, scales) else {
            return None;
        };
        // Codes of whole bytes, as the readings of such experts have.
        (codes.length == (experts * a * b) as u64).then_some(Stack {
            experts,
            sides: [a, b],
            codes: *codes,
            scales: *scales,
            form: *form,
        })
    }

    /// Scales of a matrix: rows and columns of them.
    fn grid(&self) -> [usize; 2] {
        self.form.grid(self.sides[0], self.sides[1])
    }

    /// Lines `first..end` of what lies `lines` x `columns` an expert.
    fn lines(place: Place, e: usize, [lines, columns]: [usize; 2], first: usize, end: usize) -> Place {
        let line = (columns * place.dtype.size()) as u64;
        Place {
            offset: place.offset + (e * lines + first) as u64 * line,
            length: (end - first) as u64 * line,
            shape: Shape::from([end - first, columns]),
            ..place
        }
    }

    /// Outputs `first..first + rows` of expert `e`; stored as columns where `turned`.
    fn matrix(&self, e: usize, first: usize, rows: usize, turned: bool) -> Entry {
        // One scale for all outputs serves any of them.
        let [lines, columns] = self.grid();
        let (all, shared) = if turned { (columns, self.form.group()) } else { (lines, self.form.rows()) };
        match (turned, all == 1 || first.is_multiple_of(shared)) {
            (false, true) => {
                let end = first + rows;
                let codes = Self::lines(self.codes, e, self.sides, first, end);
                let own = if all == 1 { 0..1 } else { first / shared..end.div_ceil(shared) };
                let scales = Self::lines(self.scales, e, [lines, columns], own.start, own.end);
                let shape = Shape::from([rows, self.sides[1]]);
                let [codes, scales] = [codes, scales].map(Piece::Place);
                Entry::Scaled(Scaled { shape, codes, scales, biases: None, order: None, form: self.form })
            }
            (true, true) => {
                self.turned(e, first, rows).map_or_else(|| self.widened(e, first, rows, true), Entry::Scaled)
            }
            _ => self.widened(e, first, rows, turned),
        }
    }

    /// Columns as rows, where blocks of scales have sides that allow it.
    fn turned(&self, e: usize, first: usize, rows: usize) -> Option<Scaled> {
        let ([inner, all], grid) = (self.sides, self.grid());
        let group = if grid[0] == 1 { inner.next_multiple_of(16) } else { self.form.rows() };
        let shared = if grid[1] == 1 { rows } else { self.form.group().min(rows) };
        let form = ScaledForm::new(self.form.code(), group, shared)?;
        let codes = Self::lines(self.codes, e, self.sides, 0, inner);
        let turn = move |from: &[u8], size: usize, lines: usize, columns: usize, first: usize, out: &mut [u8]| {
            for (at, to) in out.chunks_exact_mut(size).enumerate() {
                let (column, line) = (first + at / lines, at % lines);
                to.copy_from_slice(&from[(line * columns + column) * size..][..size]);
            }
        };
        let of_codes = Made::new("turned", vec![codes], codes.dtype, Shape::from([rows, inner]), move |parts, out| {
            turn(&parts[0], 1, inner, all, first, out);
        });
        let scales = Self::lines(self.scales, e, grid, 0, grid[0]);
        let own = Shape::from(form.grid(rows, inner));
        let at = if grid[1] == 1 { 0 } else { first / shared };
        let of_scales = Made::new("turned", vec![scales], scales.dtype, own, move |parts, out| {
            turn(&parts[0], scales.dtype.size(), grid[0], grid[1], at, out);
        });
        let [codes, scales] = [of_codes, of_scales].map(Piece::Made);
        Some(Scaled { shape: Shape::from([rows, inner]), codes, scales, biases: None, order: None, form })
    }

    /// As F32.
    fn widened(&self, e: usize, first: usize, rows: usize, turned: bool) -> Entry {
        let ([lines, columns], grid, form) = (self.sides, self.grid(), self.form);
        let codes = Self::lines(self.codes, e, self.sides, 0, lines);
        let scales = Self::lines(self.scales, e, grid, 0, grid[0]);
        let dtype = scales.dtype;
        let inner = if turned { lines } else { columns };
        let shape = Shape::from([rows, inner]);
        let parts = vec![codes, scales];
        Entry::Made(Made::new("dequantised", parts, turbospark_tensor::DType::F32, shape, move |parts, out| {
            let mut wide = vec![0f32; lines * columns];
            form.widen_matrix(&parts[0], &parts[1], None, dtype, columns, &mut wide);
            let value = |o: usize, i: usize| wide[if turned { i * columns + o } else { o * columns + i }];
            write_floats(
                out,
                (first..first + rows).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| value(o, i)),
            );
        }))
    }
}
