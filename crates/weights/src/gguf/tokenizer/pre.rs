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

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

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

    /// The first that cuts as the pre-tokenizer of a `tokenizer.json` does, and its name.
    pub(super) fn recognised(pre_tokenizer: &Value) -> Option<(&'static str, &'static Pre)> {
        let cuts = cuts(pre_tokenizer)?;
        let same = |pre: &&Pre| pre.cuts.iter().map(Cut::spelled).eq(cuts.iter().map(String::as_str));
        KNOWN.iter().find(same).map(|pre| (pre.names[0], pre))
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
            Cut::Gpt2 => split(GPT2),
        };
        let mut steps: Vec<_> = first.iter().map(cut).collect();
        match last {
            Cut::Gpt2 => steps.push(byte_level(true)),
            last => steps.extend([cut(last), byte_level(false)]),
        }
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

/// Stands for single digits among patterns.
const DIGITS: &str = "digits";

impl Cut {
    fn spelled(&self) -> &'static str {
        match self {
            Cut::Regex(regex) => regex,
            Cut::Digits => DIGITS,
            Cut::Gpt2 => GPT2,
        }
    }
}

/// The patterns of a pre-tokenizer that ends in the alphabet of bytes; `None` for any other.
fn cuts(pre_tokenizer: &Value) -> Option<Vec<String>> {
    let steps = match pre_tokenizer["type"].as_str()? {
        "Sequence" => pre_tokenizer["pretokenizers"].as_array()?.as_slice(),
        _ => std::slice::from_ref(pre_tokenizer),
    };
    let (last, first) = steps.split_last()?;
    let mut cuts = Vec::new();
    for step in first {
        cuts.push(match step["type"].as_str()? {
            "Split" if step["behavior"] == "Isolated" && step["invert"] != true => {
                step["pattern"]["Regex"].as_str()?.to_owned()
            }
            "Digits" if step["individual_digits"] == true => DIGITS.to_owned(),
            _ => return None,
        });
    }
    if last["type"] != "ByteLevel" || last["add_prefix_space"] == true {
        return None;
    }
    if last["use_regex"] != false {
        cuts.push(GPT2.to_owned());
    }
    Some(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pre_tokenizer_is_recognised_by_what_it_does() {
        for pre in KNOWN {
            let (name, _) = Pre::recognised(&pre.pre_tokenizer()).unwrap();
            assert!(pre.names.contains(&name), "{name}");
        }
        let other = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
        assert!(Pre::recognised(&other).is_none() && Pre::recognised(&Value::Null).is_none());
    }
}
