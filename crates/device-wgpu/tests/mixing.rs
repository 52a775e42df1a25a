//! The ops of `testkit/ops/mixing.rs` on a graphics adapter.

mod common;
#[path = "../../testkit/ops/mixing.rs"]
mod mixing;
