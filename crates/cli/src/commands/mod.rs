//! One file a command.

pub mod bench;
pub mod chat;
mod dropped;
pub mod inspect;
pub mod preprocess;
pub mod read;
pub mod run;
pub mod trace;
