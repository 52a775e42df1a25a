//! Kernels that are written out: loops over registers, and lines for one variant only.
//!
//! WGSL has neither arrays that are sure to stay in registers nor conditional text. Three comments give both:
//! `//#each i NAME` repeats the lines to its `//#end` with `{i}` replaced by 0 to NAME - 1 (or a plain number), and
//! `//#if NAME` keeps them where NAME is set, with an optional `//#else`. `{NAME}` is the number itself.

/// Writes a kernel out. A name in `//#if` is set where it is among `names` with a value other than 0.
///
/// # Panics
/// When a block isn't closed or a name isn't known: our own texts are meant.
pub(crate) fn expand(text: &str, names: &[(&str, u32)]) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::with_capacity(text.len() * 2);
    block(&lines, names, &mut out);
    for (name, value) in names {
        let braced = format!("{{{name}}}");
        if out.contains(&braced) {
            out = out.replace(&braced, &value.to_string());
        }
    }
    out
}

fn value(name: &str, names: &[(&str, u32)]) -> u32 {
    let known = || names.iter().find(|n| n.0 == name).map(|n| n.1);
    name.parse().ok().or_else(known).unwrap_or_else(|| panic!("{name} is no name of a kernel's variant"))
}

fn block(lines: &[&str], names: &[(&str, u32)], out: &mut String) {
    let mut at = 0;
    while at < lines.len() {
        let words: Vec<&str> = lines[at].split_whitespace().collect();
        match words[..] {
            ["//#each", index, count] => {
                let (end, _) = close(lines, at);
                let mut body = String::new();
                let index = format!("{{{index}}}");
                for i in 0..value(count, names) {
                    lines[at + 1..end].iter().for_each(|l| {
                        body += &l.replace(&index, &i.to_string());
                        body.push('\n');
                    });
                }
                block(&body.lines().collect::<Vec<_>>(), names, out);
                at = end;
            }
            ["//#if", name] => {
                let (end, middle) = close(lines, at);
                let (yes, no) = (&lines[at + 1..middle.unwrap_or(end)], middle.map_or(&[][..], |m| &lines[m + 1..end]));
                block(if value(name, names) != 0 { yes } else { no }, names, out);
                at = end;
            }
            _ => {
                *out += lines[at];
                out.push('\n');
            }
        }
        at += 1;
    }
}

/// The line of the end of the block that begins at `at`, and of its `else`.
fn close(lines: &[&str], at: usize) -> (usize, Option<usize>) {
    let (mut depth, mut middle) = (0, None);
    for (i, line) in lines.iter().enumerate().skip(at) {
        match line.split_whitespace().next() {
            Some("//#each" | "//#if") => depth += 1,
            Some("//#else") if depth == 1 => middle = Some(i),
            Some("//#end") if depth == 1 => return (i, middle),
            Some("//#end") => depth -= 1,
            _ => {}
        }
    }
    panic!("line {} of a kernel begins a block without an end", at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_and_conditions_nest() {
        let text = "//#each i N\n//#if A\na{i}\n//#else\n//#each j 2\nb{i}{j}\n//#end\n//#end\n//#end\nc\n";
        assert_eq!(expand(text, &[("N", 2), ("A", 1)]), "a0\na1\nc\n");
        assert_eq!(expand(text, &[("N", 1), ("A", 0)]), "b00\nb01\nc\n");
        assert_eq!(expand("mat{N}x{N}\n", &[("N", 16)]), "mat16x16\n");
    }

    #[test]
    #[should_panic(expected = "without an end")]
    fn a_block_has_an_end() {
        expand("//#if A\n", &[("A", 1)]);
    }
}
