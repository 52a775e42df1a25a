//! Matrix units by plain arithmetic: kernels that are written for them run on any adapter that has f16, slowly.
//!
//! What a kernel does around its products (loads ahead, barriers, sums carried from tile to tile) is most of what can
//! go wrong in it, and is the same text either way. Each call becomes a call of a function that is written out here for
//! the array that it reads or writes. Thirty-two threads that follow each other stand for a subgroup; what a square's
//! thread holds is our choice, as it is the driver's on hardware: some neighbours in a row of a sum, and that row of the
//! left factor. Of a right factor it holds only the place, so that it has to be used before its array is written again.
//! Nothing is an array, which software adapters would take minutes to compile.

use std::fmt::Write;

/// Lanes of the subgroups that are stood for.
const LANES: u32 = 32;

/// The text without matrix units.
///
/// # Panics
/// When the text isn't of the form that ours have.
pub(crate) fn emulate(text: &str) -> String {
    let side: u32 = if text.contains("coop_mat16x16") { 16 } else { 8 };
    let mut own = text.to_owned();
    for (types, square) in [("f16, A", "SquareA"), ("f16, B", "SquareB"), ("f32, C", "SquareC")] {
        own = own.replace(&format!("coop_mat{side}x{side}<{types}>"), square);
    }
    let mut kernel = Kernel { text: String::new(), functions: squares(side), side, factors: Vec::new() };
    for line in own.lines() {
        let line = kernel.line(line, text);
        kernel.text += &line;
        kernel.text.push('\n');
    }
    lanes(&kernel.text) + &kernel.functions
}

/// A kernel that is being written anew, line by line.
struct Kernel {
    text: String,
    functions: String,
    side: u32,
    /// Names of right factors, and how each is read.
    factors: Vec<(String, String)>,
}

/// The threads' numbers in the subgroups that are stood for.
fn lanes(text: &str) -> String {
    let (thread, ..) = parameter(text, "local_invocation_index");
    let mut own = format!("    square_lane = {thread} % {LANES}u;\n");
    let mut text = text.to_owned();
    for (builtin, what) in [("subgroup_id", "/"), ("subgroup_invocation_id", "%")] {
        let (name, begin, end) = parameter(&text, builtin);
        let _ = writeln!(own, "    let {name} = {thread} {what} {LANES}u;");
        text = format!("{}{}", &text[..begin], text[end..].trim_start_matches(','));
    }
    let main = text.find("fn main(").expect("it has an entry");
    let body = main + text[main..].find(") {\n").expect("it has a body") + ") {\n".len();
    format!("{}{own}{}", &text[..body], &text[body..])
}

/// The name of the entry's parameter that is a number of the API, and where it is written.
fn parameter(text: &str, builtin: &str) -> (String, usize, usize) {
    let begin = text.find(&format!("@builtin({builtin})")).expect("kernels on matrix units ask for it");
    let colon = begin + text[begin..].find(": u32").expect("it is a number");
    let name = text[begin..colon].rsplit(' ').next().expect("it has a name");
    (name.to_owned(), begin, colon + ": u32".len())
}

fn squares(side: u32) -> String {
    let (left, sum) = if side == 16 {
        ("a0: vec4<f32>, a1: vec4<f32>, a2: vec4<f32>, a3: vec4<f32>", "c0: vec4<f32>, c1: vec4<f32>")
    } else {
        ("a0: vec4<f32>, a1: vec4<f32>", "c0: vec2<f32>")
    };
    let own = side * side / LANES;
    format!(
        "
var<private> square_lane: u32;
struct SquareA {{ {left} }}
struct SquareB {{ at: u32, stride: u32 }}
struct SquareC {{ {sum} }}
fn square_row() -> u32 {{ return square_lane * {own}u / {side}u; }}
fn square_column() -> u32 {{ return square_lane * {own}u % {side}u; }}
"
    )
}

/// What is between the bracket that `text` begins after and the one that closes it, cut at its commas.
fn arguments(text: &str) -> (Vec<&str>, &str) {
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' if depth == 0 => {
                found.push(text[from..i].trim());
                return (found, &text[i + 1..]);
            }
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    panic!("a call isn't closed: {text}")
}

/// The array and the index of `&name[index]`.
fn place(argument: &str) -> (&str, &str) {
    let inner = argument.strip_prefix('&').and_then(|a| a.strip_suffix(']')).expect("an element's address");
    inner.split_once('[').expect("an element's address")
}

/// Whether an array in workgroup memory is one of vectors.
fn has_vectors(text: &str, array: &str) -> bool {
    let declared = format!("var<workgroup> {array}: array<");
    let begin = text.find(&declared).unwrap_or_else(|| panic!("{array} is no array of the workgroup")) + declared.len();
    let name = text[begin..].split(',').next().unwrap_or_default();
    let alias = format!("alias {name} = ");
    text.find(&alias).map_or(name, |at| &text[at + alias.len()..]).starts_with("vec4")
}

impl Kernel {
    fn line(&mut self, line: &str, text: &str) -> String {
        for (call, across) in [("coopLoadT<", false), ("coopLoad<", true)] {
            if let Some((before, after)) = line.split_once(call) {
                let (square, after) = after.split_once(">(").expect("a load tells what it gives");
                let (arguments, after) = arguments(after);
                let (array, index) = place(arguments[0]);
                let read = format!("{array}{}", if across { "_across" } else { "" });
                self.reads(array, has_vectors(text, array));
                let function = match square {
                    "SquareA" => self.left(array),
                    "SquareC" => self.sum(array),
                    _ => {
                        let name = before.trim().strip_prefix("let ").and_then(|b| b.strip_suffix(" ="));
                        let name = name.expect("right factors have names of their own").to_owned();
                        self.factors.retain(|f| f.0 != name);
                        self.factors.push((name, read.clone()));
                        self.product(array, across, &read);
                        "SquareB".to_owned()
                    }
                };
                return format!("{before}{function}({index}, {}){after}", arguments[1]);
            }
        }
        if let Some((before, after)) = line.split_once("coopMultiplyAdd(") {
            let (arguments, after) = arguments(after);
            let read = &self.factors.iter().find(|f| f.0 == arguments[1]).expect("a right factor that was loaded").1;
            return format!("{before}{read}_product({}){after}", arguments.join(", "));
        }
        if let Some((before, after)) = line.split_once("coopStoreT(") {
            let (arguments, after) = arguments(after);
            let (array, index) = place(arguments[1]);
            let function = self.store(array, has_vectors(text, array));
            return format!("{before}{function}({}, {index}, {}){after}", arguments[0], arguments[2]);
        }
        line.to_owned()
    }

    /// Adds a function, unless it is there.
    fn add(&mut self, name: String, rest: &str) -> String {
        if !self.functions.contains(&format!("fn {name}(")) {
            let _ = writeln!(self.functions, "fn {name}{rest}");
        }
        name
    }

    /// Four elements from a multiple of four on, and the cells of an array that an element is.
    fn reads(&mut self, array: &str, vectors: bool) {
        let (four, cell) = match vectors {
            true => (format!("vec4<f32>({array}[i / 4u])"), 4),
            false => {
                let one = |j: u32| format!("f32({array}[i + {j}u])");
                (format!("vec4<f32>({}, {}, {}, {})", one(0), one(1), one(2), one(3)), 1)
            }
        };
        self.add(format!("{array}_four"), &format!("(i: u32) -> vec4<f32> {{ return {four}; }}"));
        let begin = format!("(at: u32, stride: u32, row: u32) -> u32 {{ return (at + row * stride) * {cell}u; }}");
        self.add(format!("{array}_row"), &begin);
    }

    fn left(&mut self, array: &str) -> String {
        let fours: Vec<String> = (0..self.side / 4).map(|f| format!("{array}_four(i + {}u)", 4 * f)).collect();
        let body = format!("let i = {array}_row(at, stride, square_row()); return SquareA({});", fours.join(", "));
        self.add(format!("{array}_left"), &format!("(at: u32, stride: u32) -> SquareA {{ {body} }}"))
    }

    /// The thread's elements of a row that begins at element `i`.
    fn own(&self, array: &str) -> String {
        match self.side {
            16 => format!("SquareC({array}_four(i), {array}_four(i + 4u))"),
            _ => format!("square_half({array}_four(i & ~3u), i)"),
        }
    }

    fn sum(&mut self, array: &str) -> String {
        self.half();
        let row = format!("let i = {array}_row(at, stride, square_row()) + square_column();");
        let rest = format!("(at: u32, stride: u32) -> SquareC {{ {row} return {}; }}", self.own(array));
        self.add(format!("{array}_sum"), &rest)
    }

    fn half(&mut self) {
        if self.side == 8 {
            let rest = "(x: vec4<f32>, i: u32) -> SquareC { return SquareC(select(x.xy, x.zw, (i & 2u) != 0u)); }";
            self.add("square_half".to_owned(), rest);
        }
    }

    fn store(&mut self, array: &str, vectors: bool) -> String {
        let cell = if vectors { 4 } else { 1 };
        let mut body = format!("let i = (at + square_row() * stride) * {cell}u + square_column();");
        for j in 0..self.side * self.side / LANES {
            let from = format!("c.c{}.{}", j / 4, ["x", "y", "z", "w"][j as usize % 4]);
            let _ = match vectors {
                true => write!(body, " {array}[(i + {j}u) / 4u][(i + {j}u) % 4u] = {from};"),
                false => write!(body, " {array}[i + {j}u] = {from};"),
            };
        }
        self.add(format!("{array}_store"), &format!("(c: SquareC, at: u32, stride: u32) {{ {body} }}"))
    }

    fn product(&mut self, array: &str, across: bool, read: &str) {
        self.half();
        let mut body = String::from("var s = c;");
        for k in 0..self.side / 4 {
            if across {
                // Columns of the right factor lie along rows of the array.
                for j in 0..self.side * self.side / LANES {
                    let column = format!("{array}_row(b.at, b.stride, square_column() + {j}u)");
                    let to = format!("s.c{}.{}", j / 4, ["x", "y", "z", "w"][j as usize % 4]);
                    let _ = write!(body, " {to} += dot(a.a{k}, {array}_four({column} + {}u));", 4 * k);
                }
                continue;
            }
            for (c, component) in ["x", "y", "z", "w"].into_iter().enumerate() {
                let row = format!("{array}_row(b.at, b.stride, {}u) + square_column()", 4 * k as usize + c);
                let _ = write!(body, " {{ let i = {row}; let r = {};", self.own(array));
                for part in 0..(self.side / 8).min(2) {
                    let _ = write!(body, " s.c{part} += a.a{k}.{component} * r.c{part};");
                }
                body += " }";
            }
        }
        let rest = format!("(a: SquareA, b: SquareB, c: SquareC) -> SquareC {{ {body} return s; }}");
        self.add(format!("{read}_product"), &rest);
    }
}
