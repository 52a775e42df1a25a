//! The turbospark program.
fn main() {}
