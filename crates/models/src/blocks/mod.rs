//! Blocks that families share.

pub(crate) mod attention;
pub(crate) mod delta;
pub(crate) mod mlp;
pub(crate) mod vision_block;
