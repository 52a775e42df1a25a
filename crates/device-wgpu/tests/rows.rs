//! The ops of `testkit/ops/rows.rs` on a graphics adapter.

mod common;
#[path = "../../testkit/ops/rows.rs"]
mod rows;
