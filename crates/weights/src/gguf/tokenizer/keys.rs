//! Names of metadata keys about the tokenizer.

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(super) const EOS: &str = "tokenizer.ggml.eos_token_id";
pub(super) const EOT: &str = "tokenizer.ggml.eot_token_id";
pub(super) const EOM: &str = "tokenizer.ggml.eom_token_id";
pub(super) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
pub(super) const PADDING: &str = "tokenizer.ggml.padding_token_id";
pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(super) const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(super) const REMOVE_EXTRA_WHITESPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
pub(super) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
pub(super) const CHAT_TEMPLATES: &str = "tokenizer.chat_templates";
