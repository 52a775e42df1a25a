//! Weights that are not read, by the names and the first bytes of their files: what they are, and what to do instead.

/// A file of weights in a form that is not read, and what to say of it.
pub(crate) fn instead(names: &[String]) -> Option<(&str, &'static str)> {
    const ADAPTER: &str = "is an adapter (LoRA) and not a model: merge it into the model that it was made for, and save \
                           that as safetensors";
    const PICKLE: &str = "holds pickled PyTorch objects, which are not read; take the model's safetensors or GGUF, or \
                          save it again as safetensors";
    const OTHER: &str = "is made for another runtime and not read; take the model's safetensors or GGUF";
    const UNFINISHED: &str = "is of a packing that was not finished: the same `turbospark pack` goes on from there";
    let kinds: [(&[&str], &str); 4] = [
        (&[crate::packed::JOURNAL_NAME], UNFINISHED),
        (&["adapter_config.json", "adapter_model.safetensors", "adapters.safetensors"], ADAPTER),
        (&[".bin", ".pt", ".pth", ".ckpt", ".pkl"], PICKLE),
        (&[".onnx", ".h5", ".msgpack", ".tflite", ".engine", ".mlpackage", ".llamafile", ".ggml"], OTHER),
    ];
    kinds.into_iter().find_map(|(ends, what)| {
        let is = |name: &&String| ends.iter().any(|end| name.to_ascii_lowercase().ends_with(end));
        names.iter().find(is).map(|name| (name.as_str(), what))
    })
}

/// What a file that begins so is, where it isn't what its name says.
pub(crate) fn by_first_bytes(bytes: &[u8]) -> Option<&'static str> {
    let kinds: [(&[&[u8]], &str); 4] = [
        (
            &[b"version "],
            "a pointer of Git LFS, not the file itself: fetch it with `git lfs pull` or `turbospark pull`",
        ),
        (&[b"<!DOCTYP", b"<!doctyp", b"<html", b"<HTML"], "a web page, not the file itself: fetch it again"),
        (
            &[b"PK\x03\x04", b"\x80\x02", b"\x80\x04"],
            "pickled PyTorch objects, which are not read; take the model's safetensors or GGUF",
        ),
        (&[b"GGUF"], "a GGUF file: give it a name that ends in .gguf"),
    ];
    kinds.into_iter().find(|(begins, _)| begins.iter().any(|b| bytes.starts_with(b))).map(|(_, what)| what)
}
