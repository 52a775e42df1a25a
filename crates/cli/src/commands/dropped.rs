//! Paths as a terminal writes them when files are dragged onto it.

use std::path::PathBuf;

use crate::request::file_url;

/// The paths that a line consists of: quoted, with escaped blanks, or as `file:` URLs. Empty where the line
/// holds anything else.
pub fn paths(line: &str) -> Vec<PathBuf> {
    // A path with blanks in it, typed as it is.
    let whole = PathBuf::from(line);
    if whole.is_file() {
        return vec![whole];
    }
    let existing = |word: String| {
        let path = if word.starts_with("file://") { file_url(&word).ok()? } else { PathBuf::from(word) };
        path.is_file().then_some(path)
    };
    let paths = words(line).map(|words| words.into_iter().map(existing).collect::<Option<Vec<PathBuf>>>());
    paths.flatten().unwrap_or_default()
}

/// Splits at blanks, as a shell does; `None` where a quote stays open.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            // On Windows a backslash is part of the path.
            ('\\', None | Some('"')) if !cfg!(windows) => word.get_or_insert_default().push(chars.next()?),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}
