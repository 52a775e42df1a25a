//! Added tokens: control tokens and tags, found in template text by their literal.

use crate::error::{Result, TextError};

/// One added token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    /// Control tokens are special; tags that a model writes as text (`<think>`) are not.
    pub(crate) special: bool,
}

/// The added tokens of a tokenizer, indexed for search.
#[derive(Debug, Default)]
pub(crate) struct AddedTokens {
    /// Longest first, so that the first hit at a place is the longest.
    tokens: Vec<AddedToken>,
    by_first_byte: Vec<Vec<usize>>,
}

impl AddedTokens {
    pub(super) fn new(mut tokens: Vec<AddedToken>) -> Result<Self> {
        tokens.sort_by(|a, b| (b.content.len(), &a.content, a.id).cmp(&(a.content.len(), &b.content, b.id)));
        tokens.dedup_by(|a, b| a.id == b.id && a.content == b.content);
        for pair in tokens.windows(2) {
            if pair[0].content == pair[1].content {
                return Err(TextError::Tokenizer(format!(
                    "added token {:?} has two ids, {} and {}",
                    pair[0].content, pair[0].id, pair[1].id
                )));
            }
        }
        let mut by_first_byte = vec![Vec::new(); 256];
        for (index, token) in tokens.iter().enumerate() {
            match token.content.as_bytes().first() {
                Some(&first) => by_first_byte[usize::from(first)].push(index),
                None => {
                    return Err(TextError::Tokenizer(format!("added token {} has an empty content", token.id)));
                }
            }
        }
        Ok(AddedTokens { tokens, by_first_byte })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &AddedToken> {
        self.tokens.iter()
    }

    /// The longest added token that `text` begins with.
    pub(crate) fn prefix_of(&self, text: &str) -> Option<&AddedToken> {
        let first = *text.as_bytes().first()?;
        let candidates = self.by_first_byte.get(usize::from(first))?;
        candidates.iter().map(|&index| &self.tokens[index]).find(|token| text.starts_with(token.content.as_str()))
    }

    /// The leftmost-longest added token in `text` and where it begins.
    pub(crate) fn find(&self, text: &str) -> Option<(usize, &AddedToken)> {
        text.char_indices().find_map(|(at, _)| Some((at, self.prefix_of(&text[at..])?)))
    }
}
