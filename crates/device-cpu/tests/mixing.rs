//! The ops of `testkit/ops/mixing.rs` on every CPU device.

mod common;
#[path = "../../testkit/ops/mixing.rs"]
mod mixing;
