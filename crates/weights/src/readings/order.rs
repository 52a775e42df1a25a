//! Activation order: groups that are scattered over a row.
//!
//! A quantiser that takes inputs by their weight in the activations gives each input a group (`g_idx`), and stores its
//! column where it was. Sorted by group, columns are groups as everywhere else; which input a column belongs to is then
//! a tensor of its own ([`Scaled::order`](crate::Scaled)).

use turbospark_tensor::{DType, Shape};

use super::{Raw, bad, expect, words};
use crate::{Made, Piece, Place, Result};

/// How inputs are grouped.
pub(super) struct Order {
    /// Inputs of a group.
    pub group: usize,
    /// The group of each input, where it isn't `i / group`.
    pub scattered: Option<Vec<u32>>,
    /// Sorted by group they are so, the last group perhaps shorter, and groups are multiples of 16.
    pub even: bool,
}

impl Order {
    /// The group of each of `inner` inputs.
    pub fn groups(self, inner: usize) -> Vec<u32> {
        self.scattered.unwrap_or_else(|| (0..inner).map(|i| (i / self.group) as u32).collect())
    }
}

/// Reads the groups of `inner` inputs; without `place` they follow each other, `group` at a time.
pub(super) fn read(
    raw: &Raw<'_>,
    name: &str,
    place: Option<Place>,
    inner: usize,
    groups: usize,
    group: usize,
) -> Result<Order> {
    let Some(place) = place else {
        return Ok(Order { group, scattered: None, even: group.is_multiple_of(16) });
    };
    expect(name, &place, &[DType::I32], &[inner])?;
    let of = groups_of(&raw.read(&place)?, groups);
    if let Some(i) = of.iter().position(|&g| g as usize >= groups) {
        return Err(bad(name, format!("input {i} is in group {} of {groups}", of[i] as i32)));
    }
    let group = of.iter().filter(|&&g| g == 0).count().max(1);
    let plain = of.iter().enumerate().all(|(i, &g)| g as usize == i / group);
    let even = sorted(&of).iter().enumerate().all(|(i, &input)| of[input as usize] as usize == i / group);
    let even = even && inner.div_ceil(group) == groups && group.is_multiple_of(16);
    Ok(Order { group, scattered: (!plain).then_some(of), even })
}

/// The group of each input; some writers count the last ones from -1 down.
fn groups_of(bytes: &[u8], groups: usize) -> Vec<u32> {
    let positive = |g: u32| if (g as i32) < 0 { g.wrapping_add(groups as u32) } else { g };
    words(bytes).into_iter().map(positive).collect()
}

/// The inputs by group, those of a group as they were.
fn sorted(of: &[u32]) -> Vec<u32> {
    let mut inputs: Vec<u32> = (0..of.len() as u32).collect();
    inputs.sort_by_key(|&i| of[i as usize]);
    inputs
}

/// The sorted inputs from the bytes of `g_idx`.
pub(super) fn inputs(bytes: &[u8], groups: usize) -> Vec<u32> {
    sorted(&groups_of(bytes, groups))
}

/// The same as a tensor.
pub(super) fn piece(place: Place, inner: usize, groups: usize) -> Piece {
    Piece::Made(Made::new("sorted", vec![place], DType::I32, Shape::from([inner]), move |parts, out| {
        let inputs = inputs(&parts[0], groups);
        out.as_chunks_mut().0.iter_mut().zip(inputs).for_each(|(o, i)| *o = i.to_le_bytes());
    }))
}
