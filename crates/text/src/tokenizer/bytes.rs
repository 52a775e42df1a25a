//! The byte-level alphabet: every byte as a printable character, as GPT-2 defined it.

/// The character that stands for `byte` in a byte-level vocabulary.
fn char_of(byte: u8) -> char {
    let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable {
        return char::from(byte);
    }
    // The other 68 follow from U+0100 on, in the order of their bytes.
    let rank = match byte {
        0..=0x20 => u32::from(byte),
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 33,
        _ => 67,
    };
    char::from_u32(0x100 + rank).expect("U+0100 to U+0143 are characters")
}

/// Both directions of the alphabet.
pub(super) struct Alphabet {
    byte_of: [Option<u8>; 0x144],
}

impl Alphabet {
    pub(super) fn new() -> Self {
        let mut byte_of = [None; 0x144];
        for byte in 0..=u8::MAX {
            byte_of[char_of(byte) as usize] = Some(byte);
        }
        Alphabet { byte_of }
    }

    /// Appends the bytes that `token` stands for; false if a character is not of the alphabet.
    pub(super) fn append(&self, token: &str, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for c in token.chars() {
            match self.byte_of.get(c as usize) {
                Some(&Some(byte)) => out.push(byte),
                _ => {
                    out.truncate(start);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_the_known_ones_are_right() {
        let alphabet = Alphabet::new();
        for byte in 0..=u8::MAX {
            let mut out = Vec::new();
            assert!(alphabet.append(&char_of(byte).to_string(), &mut out));
            assert_eq!(out, [byte]);
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xad), 'Ń');
    }
}
