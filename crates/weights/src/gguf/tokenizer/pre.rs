//! Pre-tokenizers by the names that GGUF files have for them.

use serde_json::{Value, json};

/// How a text is cut into words before merges, and what goes with it.
pub(super) struct Pre {
    names: &'static [&'static str],
    /// Whether texts are brought to Unicode's composed form first.
    nfc: bool,
    /// Cuts, each within the pieces of the one before.
    cuts: &'static [Cut],
    /// Whether a word that is a token stays whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether the begin token is added where the file doesn't say.
    pub(super) add_bos: bool,
}

enum Cut {
    /// Each match and each stretch between matches is a piece.
    Regex(&'static str),
    /// Each digit is a piece.
    Digits,
    /// The pattern of GPT-2.
    Gpt2,
}

// As the models' own tokenizer.json files have them. Qwen3.5 also takes combining marks for letters.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const KNOWN: &[Pre] = &[
    Pre { names: &["qwen2"], nfc: true, cuts: &[Cut::Regex(QWEN2)], ignore_merges: false, add_bos: false },
    Pre { names: &["qwen35"], nfc: true, cuts: &[Cut::Regex(QWEN35)], ignore_merges: false, add_bos: false },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3"],
        nfc: false,
        cuts: &[Cut::Regex(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
    },
    Pre { names: &["smollm"], nfc: false, cuts: &[Cut::Digits, Cut::Gpt2], ignore_merges: false, add_bos: false },
    Pre { names: &["gpt-2"], nfc: false, cuts: &[Cut::Gpt2], ignore_merges: false, add_bos: false },
    // What llama.cpp does for a file whose converter knew no better: a convention, not the model's own rule.
    Pre {
        names: &["default"],
        nfc: false,
        cuts: &[Cut::Regex(r"[\p{P}\$\+<=>\^~\|]+"), Cut::Gpt2, Cut::Regex(r"\p{N}+"), Cut::Regex("[0-9][0-9][0-9]")],
        ignore_merges: false,
        add_bos: false,
    },
];

impl Pre {
    pub(super) fn of(name: &str) -> Option<&'static Pre> {
        KNOWN.iter().find(|pre| pre.names.contains(&name))
    }

    /// The names that are understood.
    pub(super) fn known() -> String {
        let names: Vec<_> = KNOWN.iter().flat_map(|pre| pre.names).copied().collect();
        names.join(", ")
    }

    pub(super) fn normalizer(&self) -> Value {
        if self.nfc { json!({ "type": "NFC" }) } else { Value::Null }
    }

    pub(super) fn pre_tokenizer(&self) -> Value {
        let byte_level = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
        let split = |regex: &str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
        // Bytes become characters of their alphabet last, or a later cut would not know them.
        let (last, first) = self.cuts.split_last().expect("each pre-tokenizer cuts");
        let cut = |cut: &Cut| match cut {
            Cut::Regex(regex) => split(regex),
            Cut::Digits => json!({ "type": "Digits", "individual_digits": true }),
            Cut::Gpt2 => split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        };
        let mut steps: Vec<_> = first.iter().map(cut).collect();
        match last {
            Cut::Gpt2 => steps.push(byte_level(true)),
            last => steps.extend([cut(last), byte_level(false)]),
        }
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}
