//! Bytes that arrive in pieces, as text that can be sent at once.

/// Turns byte pieces into text: every delta is valid, and all deltas joined equal
/// [`String::from_utf8_lossy`] of all bytes joined, however they were cut.
///
/// ```
/// # use turbospark_text::Utf8Stream;
/// let mut stream = Utf8Stream::default();
/// assert_eq!(stream.push(b"ok \xf0\x9f"), "ok ");
/// assert_eq!(stream.push(b"\xaa\xbf"), "\u{1fabf}");
/// assert_eq!(stream.push(b"\xff!"), "\u{fffd}!");
/// assert_eq!(stream.finish(), "");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The beginning of one character: at most three bytes between calls.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes the next bytes and returns what is certain by now. A replacement mark is only sent for
    /// bytes that cannot become a character any more, since it could not be taken back.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        rest = after;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[invalid..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Ends the stream: an unfinished character becomes one U+FFFD. The stream can be used again.
    pub fn finish(&mut self) -> String {
        let tail = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&tail).into_owned()
    }

    /// Whether bytes are held back.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}
