use std::collections::HashSet;

use turbospark_tensor::{DType, Shape};

use crate::{Checkpoint, Error, Linear, Made, Piece, Result, Scaled, error::shorten};

/// Which tensors of a checkpoint a model has asked for.
///
/// A model claims every tensor that it uses, by name and by the shape that `config.json` gives, and then calls
/// [`Claims::finish`], so that a tensor too many is refused like one too few.
#[derive(Debug)]
pub struct Claims<'a> {
    checkpoint: &'a Checkpoint,
    taken: HashSet<&'a str>,
}

impl<'a> Claims<'a> {
    /// How many unclaimed tensors a message lists.
    const LISTED: usize = 5;

    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Self {
        Claims { checkpoint, taken: HashSet::new() }
    }

    /// The checkpoint that the claims are on.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// Whether the checkpoint has a tensor of this name, claimed or not.
    pub fn contains(&self, name: &str) -> bool {
        self.checkpoint.contains(name)
    }

    /// Claims a tensor of exactly this name and shape as floats. Claiming again gives the same piece. Weights in
    /// blocks or with scales are dequantised to F32 as they are brought.
    pub fn take(&mut self, name: &str, expected: impl Into<Shape>) -> Result<Piece> {
        Ok(match self.take_linear(name, expected)? {
            Linear::Piece(piece) if piece.dtype().is_float() => piece,
            Linear::Piece(piece) => dequantised_blocks(piece),
            Linear::Scaled(scaled) => dequantised(&scaled),
        })
    }

    /// Claims a linear weight or a table of exactly this name and shape, in whatever form it is stored.
    pub fn take_linear(&mut self, name: &str, expected: impl Into<Shape>) -> Result<Linear> {
        self.take_any(&[(name, expected.into())]).map(|(_, linear)| linear)
    }

    /// Claims the first alternative whose name and shape are both there, and says which it was.
    ///
    /// Two alternatives of one name can have equal shapes (a stored transpose of a square matrix): the order
    /// decides, so the published layout goes first.
    pub fn take_any(&mut self, alternatives: &[(&str, Shape)]) -> Result<(usize, Linear)> {
        let mut misfit = None;
        for (i, &(name, expected)) in alternatives.iter().enumerate() {
            let Some(found) = self.checkpoint.lookup(name) else { continue };
            let (key, linear) = found?;
            if let Linear::Piece(piece) = &linear
                && !piece.dtype().is_weight()
            {
                return Err(Error::NotFloat { name: shorten(name), dtype: piece.dtype() });
            }
            if linear.shape() == expected {
                self.taken.insert(key);
                return Ok((i, linear));
            }
            misfit = misfit.or(Some((name, linear.shape())));
        }
        let expected_of = |wanted: Option<&str>| {
            let shapes = alternatives.iter().filter(|(name, _)| wanted.is_none_or(|wanted| *name == wanted));
            join(shapes.map(|(_, shape)| shape.to_string()))
        };
        match misfit {
            Some((name, got)) => Err(Error::WrongShape { name: shorten(name), got, expected: expected_of(Some(name)) }),
            None => Err(Error::MissingTensor {
                name: join(alternatives.iter().map(|(name, _)| shorten(name))),
                expected: expected_of(None),
                nearest: alternatives.first().and_then(|(name, _)| self.nearest(name)).map(shorten),
            }),
        }
    }

    /// Refuses every tensor that was not claimed, save those whose name begins with one of `known_skips`: parts
    /// of a published checkpoint that no answer hangs on. Gives the number skipped.
    pub fn finish(self, known_skips: &[&str]) -> Result<usize> {
        let (mut skipped, mut count, mut listed) = (0, 0, Vec::new());
        for (name, entry) in self.checkpoint.entries().filter(|(name, _)| !self.taken.contains(name)) {
            if known_skips.iter().any(|prefix| name.starts_with(prefix)) {
                skipped += 1;
                continue;
            }
            count += 1;
            if listed.len() < Self::LISTED {
                listed.push(format!("{:?} {}", shorten(name), entry.describe()));
            }
        }
        match count {
            0 => Ok(skipped),
            _ => Err(Error::Unclaimed { count, complete: listed.len() == count, listed: listed.join(", ") }),
        }
    }

    /// The unclaimed name that `wanted` most likely means: with the same layer numbers, and sharing the most
    /// at both ends.
    fn nearest(&self, wanted: &str) -> Option<&'a str> {
        let numbers = |name: &'a str| name.split('.').filter(|part| part.bytes().all(|b| b.is_ascii_digit()));
        let wanted_numbers: Vec<_> = wanted.split('.').filter(|p| p.bytes().all(|b| b.is_ascii_digit())).collect();
        self.checkpoint
            .entries()
            .map(|(name, _)| name)
            .filter(|name| !self.taken.contains(name) && numbers(name).eq(wanted_numbers.iter().copied()))
            .map(|name| (shared(name, wanted), name))
            // More than half of the shorter name, or the hint misleads.
            .filter(|(shared, name)| 2 * shared > name.len().min(wanted.len()))
            .max_by_key(|(shared, _)| *shared)
            .map(|(_, name)| name)
    }
}

/// Blocks as F32.
fn dequantised_blocks(piece: Piece) -> Piece {
    let (stored, shape) = (piece.dtype(), piece.shape());
    made_from("dequantised", &[&piece], shape, move |parts, out| {
        turbospark_tensor::widen_into(&parts[0], stored, out);
    })
}

/// Codes with scales as F32.
fn dequantised(scaled: &Scaled) -> Piece {
    let (form, shape) = (scaled.form, scaled.shape);
    let dtype = scaled.scales.dtype();
    let pieces: Vec<&Piece> = scaled.pieces().collect();
    let (biased, ordered) = (scaled.biases.is_some(), scaled.order.is_some());
    let &[.., out_dim, in_dim] = shape.dims() else { unreachable!("a scaled weight has rows") };
    made_from("dequantised", &pieces, shape, move |parts, out| {
        let matrices = out.len() / (out_dim * in_dim).max(1);
        let share = |i: usize, m: usize| {
            let each = parts[i].len() / matrices.max(1);
            &parts[i][m * each..(m + 1) * each]
        };
        for (m, out) in out.chunks_exact_mut((out_dim * in_dim).max(1)).enumerate() {
            let biases = biased.then(|| share(2, m));
            form.widen_matrix(share(0, m), share(1, m), biases, dtype, in_dim, out);
        }
        if let (true, Some(order)) = (ordered, parts.last()) {
            let order: Vec<usize> = order.as_chunks().0.iter().map(|&i| i32::from_le_bytes(i) as usize).collect();
            let mut row = vec![0f32; in_dim];
            for out in out.chunks_exact_mut(in_dim.max(1)) {
                row.copy_from_slice(out);
                // An order from a file may name inputs that there are not.
                order.iter().zip(&row).for_each(|(&i, &v)| out.get_mut(i).map_or((), |o| *o = v));
            }
        }
    })
}

/// An F32 tensor from the bytes of pieces, which may be made themselves.
fn made_from(
    recipe: &'static str,
    pieces: &[&Piece],
    shape: Shape,
    make: impl Fn(&[Vec<u8>], &mut [f32]) + Send + Sync + 'static,
) -> Piece {
    let steps: Vec<Piece> = pieces.iter().map(|&piece| piece.clone()).collect();
    let places = steps.iter().flat_map(|piece| match piece {
        Piece::Place(place) => std::slice::from_ref(place),
        Piece::Made(made) => &made.parts,
    });
    let parts = places.copied().collect();
    Piece::Made(Made::new(recipe, parts, DType::F32, shape, move |parts, out| {
        let mut rest = parts;
        let pieces: Vec<Vec<u8>> = steps
            .iter()
            .map(|piece| match piece {
                Piece::Place(_) => {
                    let (own, others) = rest.split_at(1);
                    rest = others;
                    own[0].clone()
                }
                Piece::Made(made) => {
                    let (own, others) = rest.split_at(made.parts.len());
                    rest = others;
                    let mut bytes = vec![0; made.length() as usize];
                    made.fill(own, &mut bytes);
                    bytes
                }
            })
            .collect();
        let mut wide = vec![0f32; out.len() / 4];
        make(&pieces, &mut wide);
        for (o, v) in out.chunks_exact_mut(4).zip(wide) {
            o.copy_from_slice(&v.to_le_bytes());
        }
    }))
}

/// Bytes that two names have in common at their beginnings and their ends.
fn shared(a: &str, b: &str) -> usize {
    let most = a.len().min(b.len());
    let front = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let back = a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count();
    (front + back).min(most)
}

fn join(parts: impl Iterator<Item = String>) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for part in parts {
        if !distinct.contains(&part) {
            distinct.push(part);
        }
    }
    distinct.join(" or ")
}
