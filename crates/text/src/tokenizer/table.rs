//! Bytes of all tokens in one buffer: a vocabulary has a quarter of a million of them.

use super::added::AddedToken;
use super::invalid;
use super::spelling::Spelling;
use crate::error::Result;

/// Ids beyond this are taken for a damaged file; it bounds the table.
const MAX_ID: u32 = 1 << 22;

pub(super) struct ByteTable {
    bytes: Vec<u8>,
    /// Where token `i` ends; it begins where the one before ends.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Missing,
    Plain,
    Special,
}

impl ByteTable {
    pub(super) fn new(vocab: &[(String, u32)], added: &[AddedToken], spelling: &Spelling) -> Result<Self> {
        let ids = vocab.iter().map(|&(_, id)| id);
        let largest = ids.chain(added.iter().map(|token| token.id)).max();
        let largest = largest.ok_or_else(|| invalid("the vocabulary is empty"))?;
        if largest >= MAX_ID {
            return Err(invalid(format!("token id {largest} is beyond {MAX_ID}, the largest supported")));
        }
        let plain = vocab.iter().map(|(token, id)| (*id, None, token));
        let added = added.iter().map(|t| (t.id, Some(t.special), &t.content));
        let mut order: Vec<(u32, Option<bool>, &String)> = plain.chain(added).collect();
        // Stable: an added token comes after the vocabulary's entry of the same id and replaces it.
        order.sort_by_key(|&(id, ..)| id);

        let mut table = ByteTable {
            bytes: Vec::with_capacity(vocab.len() * 8),
            ends: Vec::with_capacity(largest as usize + 1),
            kinds: Vec::with_capacity(largest as usize + 1),
        };
        let mut order = order.as_slice();
        for id in 0..=largest {
            let same = order.iter().take_while(|entry| entry.0 == id).count();
            let (entries, rest) = order.split_at(same);
            order = rest;
            let kind = match entries.last() {
                None => Kind::Missing,
                Some((_, special, token)) => {
                    spelling.append(token, special.is_some(), &mut table.bytes);
                    if *special == Some(true) { Kind::Special } else { Kind::Plain }
                }
            };
            table.ends.push(table.bytes.len() as u32);
            table.kinds.push(kind);
        }
        Ok(table)
    }

    /// One more than the largest id.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token, and whether it is special.
    pub(super) fn get(&self, id: u32) -> Option<(&[u8], bool)> {
        let id = id as usize;
        let kind = *self.kinds.get(id).filter(|&&kind| kind != Kind::Missing)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        let bytes = &self.bytes[start as usize..self.ends[id] as usize];
        Some((bytes, kind == Kind::Special))
    }
}
