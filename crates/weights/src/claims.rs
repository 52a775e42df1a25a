use std::collections::HashSet;

use turbospark_tensor::Shape;

use crate::{Checkpoint, Error, Place, Result, error::shorten};

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

    /// Claims a float tensor of exactly this name and shape. Claiming again gives the same place.
    pub fn take(&mut self, name: &str, expected: impl Into<Shape>) -> Result<Place> {
        self.take_any(&[(name, expected.into())]).map(|(_, place)| place)
    }

    /// Claims the first alternative whose name and shape are both there, and says which it was.
    ///
    /// Two alternatives of one name can have equal shapes (a stored transpose of a square matrix): the order
    /// decides, so the published layout goes first.
    pub fn take_any(&mut self, alternatives: &[(&str, Shape)]) -> Result<(usize, Place)> {
        let mut misfit = None;
        for (i, &(name, expected)) in alternatives.iter().enumerate() {
            let Some(found) = self.checkpoint.lookup(name) else { continue };
            let (key, place) = found?;
            if !place.dtype.is_float() {
                return Err(Error::NotFloat { name: shorten(name), dtype: place.dtype });
            }
            if place.shape == expected {
                self.taken.insert(key);
                return Ok((i, place));
            }
            misfit = misfit.or(Some((name, place.shape)));
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
