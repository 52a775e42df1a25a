//! The ops of `testkit/ops/rows.rs` on every CPU device.

mod common;
#[path = "../../testkit/ops/rows.rs"]
mod rows;
