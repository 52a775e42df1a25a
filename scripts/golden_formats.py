#!/usr/bin/env python3
"""Golden logits of quantised checkpoints: transformers in f32 on weights that are dequantised here.

    TURBOSPARK_FORMATS=DIR cargo test --release -p turbospark --test format_goldens folders
    pip install torch transformers gguf==0.19.0 numpy
    scripts/golden_formats.py DIR [GGUF_FOLDER] > crates/turbospark/tests/data/formats.json

DIR holds the folders that the test writes: a checkpoint in a format, its experts one by one, for each fixture of
assets/fixtures, and the prompt. The formulas below are those of the programs that define the formats, in plain numpy;
nothing is taken from this project's own readings. GGUF_FOLDER holds tiny-ocr-qwen3_vl-q8_0.gguf, -q4_k_m.gguf and their
tower, which the gguf package widens.
"""
import json
import math
import os
import re
import struct
import sys

import numpy as np
import torch

FIXTURES = os.path.join(os.path.dirname(__file__), "..", "assets", "fixtures")
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<u4", "U32": "<u4", "I64": "<i8", "U8": "u1", "I8": "i1",
          "F8_E4M3": "u1"}
STEP = 40


def read(path):
    """Name -> (dtype, array)."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = (8 + n + at for at in t["data_offsets"])
            out[name] = t["dtype"], np.frombuffer(raw[begin:end], DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def floats(tensor):
    dtype, x = tensor
    if dtype == "BF16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F8_E4M3":
        return e4m3(x)
    return x.astype(np.float32)


def e4m3(x):
    x = x.astype(np.int32)
    exponent, fraction = x >> 3 & 15, x & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(x >> 7, -value, value).astype(np.float32)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def stream(words, bits):
    """Fields of rows of words, the first in the lowest bits of the first word."""
    all = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    all = all[:, : all.shape[1] // bits * bits].reshape(len(words), -1, bits).astype(np.int64)
    return (all << np.arange(bits)).sum(-1)


def planes(words, bits):
    """Fields of which each 32 lie in planes of 4, 2 and 1 bits, the low bits first."""
    rows = words.reshape(len(words), -1, bits)
    out, at = np.zeros((len(words), rows.shape[1], 32), np.int64), 0
    for width in (4, 2, 1):
        if bits & width:
            part = np.ascontiguousarray(rows[:, :, at : at + width]).reshape(-1, width)
            out |= stream(part, width).reshape(out.shape) << at
            at += width
    return out.reshape(len(words), -1)


def gptq(t, stem, quant):
    version = quant.get("checkpoint_format", "gptq")
    scales = floats(t[stem + ".scales"])  # [groups, out]
    codes, zeros = t[stem + ".qweight"][1], t[stem + ".qzeros"][1]
    bits = zeros.shape[1] * 32 // scales.shape[1]
    split = planes if bits in (5, 6, 7) or (version == "gptq_p" and bits == 3) else stream
    less = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}.get(bits)
    if version == "gptq" and less:
        zeros = (zeros.astype(np.uint64) + less & 0xFFFFFFFF).astype(np.uint32)
    zeros = split(zeros, bits)
    if version == "gptq" and not less:
        zeros = zeros + 1 & (1 << bits) - 1
    group = t[stem + ".g_idx"][1].astype(np.int64)
    q = split(np.ascontiguousarray(codes.T), bits)  # [out, in]
    return (q - zeros.T[:, group]).astype(np.float32) * scales.T[:, group]


def awq(t, stem, quant):
    codes, zeros, scales = t[stem + ".qweight"][1], t[stem + ".qzeros"][1], floats(t[stem + ".scales"])
    group = quant["group_size"]
    if quant["version"] == "gemv":
        q = stream(codes, 4)
        groups = q.shape[1] // group
        zeros, scales = stream(zeros, 4)[:, :groups], scales[:, :groups]
    else:
        order = [0, 4, 1, 5, 2, 6, 3, 7]
        turn = lambda words: stream(words, 4).reshape(len(words), -1, 8)[:, :, order].reshape(len(words), -1).T
        q, zeros, scales = turn(codes), turn(zeros), scales.T
    wide = lambda x: np.repeat(x, group, axis=1)[:, : q.shape[1]]
    return (q - wide(zeros)).astype(np.float32) * wide(scales)


def packed(t, stem, quant):
    bits = next(iter(quant["config_groups"].values()))["weights"]["num_bits"]
    out, inner = t[stem + ".weight_shape"][1]
    scales = floats(t[stem + ".weight_scale"])
    q = stream(t[stem + ".weight_packed"][1], bits)[:, :inner] - (1 << bits - 1)
    groups = scales.shape[1]
    group = t.get(stem + ".weight_g_idx", (None, np.arange(inner) * groups // inner))[1].astype(np.int64)
    zeros = np.zeros((out, groups), np.int64)
    if stem + ".weight_zero_point" in t:
        words = np.ascontiguousarray(t[stem + ".weight_zero_point"][1].T)  # [groups, words]
        zeros = stream(words, bits)[:, :out].T - (1 << bits - 1)
    return (q - zeros[:, group]).astype(np.float32) * scales[:, group]


def nvfp4(t, stem):
    codes, scales = t[stem + ".weight_packed"][1], e4m3(t[stem + ".weight_scale"][1])
    both = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    return E2M1[both] * np.repeat(scales / floats(t[stem + ".weight_global_scale"]), 16, axis=1)


def blocks(codes, scales, sides):
    if scales.size == 1:
        return codes * scales.reshape(())
    a, b = sides or (math.ceil(codes.shape[0] / scales.shape[0]), math.ceil(codes.shape[1] / scales.shape[1]))
    wide = np.repeat(np.repeat(scales, a, axis=0), b, axis=1)
    return codes * wide[: codes.shape[0], : codes.shape[1]]


def dequantised(t, quant):
    """The weights in f32 by their published names."""
    out = {}
    for name, tensor in t.items():
        stem, _, leaf = name.rpartition(".")
        if leaf == "qweight":
            out[stem + ".weight"] = (awq if quant["quant_method"] == "awq" else gptq)(t, stem, quant)
        elif leaf == "weight_packed":
            out[stem + ".weight"] = nvfp4(t, stem) if tensor[0] == "U8" else packed(t, stem, quant)
        elif leaf == "weight" and stem + ".weight_scale_inv" in t:
            scale = floats(t[stem + ".weight_scale_inv"])
            out[name] = blocks(floats(tensor), scale, quant.get("weight_block_size"))
        elif leaf == "weight" and stem + ".weight_scale" in t:
            scale = floats(t[stem + ".weight_scale"])
            out[name] = blocks(floats(tensor), scale.reshape(-1, 1) if scale.size > 1 else scale, None)
        elif leaf in ("weight", "bias", "A_log", "dt_bias"):
            out[name] = floats(tensor)
    return out


def fused(weights, model):
    """Experts as the model has them: of all experts, gate and up in one."""
    state = model.state_dict()
    for name in [n for n in state if re.search(r"\.experts\.(gate_up|down)_proj$", n)]:
        layer, part = name.rsplit(".", 1)
        each = []
        for e in range(state[name].shape[0]):
            of = lambda p: weights.pop(f"{layer}.{e}.{p}.weight")
            each.append(np.concatenate([of("gate_proj"), of("up_proj")]) if part == "gate_up_proj" else of("down_proj"))
        all = np.stack(each)
        weights[name] = all if all.shape == tuple(state[name].shape) else all.transpose(0, 2, 1)
    return weights


def logits(config, weights, inputs):
    from transformers import AutoConfig, AutoModelForImageTextToText

    kind = {"experts_implementation": "eager"} if "moe" in config["model_type"] else {}
    config = AutoConfig.for_model(**{k: v for k, v in config.items() if k != "quantization_config"})
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="eager", **kind)
    model = model.float().eval()
    weights = fused({n: w for n, w in weights.items() if not n.startswith("mtp.")}, model)
    tied = getattr(config, "tie_word_embeddings", False) or getattr(config.text_config, "tie_word_embeddings", False)
    if tied:
        weights.setdefault("lm_head.weight", weights["model.language_model.embed_tokens.weight"])
    state = {n: torch.from_numpy(np.array(w, np.float32)) for n, w in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    ids = torch.from_numpy(inputs["ids"][1].copy())[None]
    image = ids == -1
    ids[image] = config.image_token_id
    with torch.no_grad():
        out = model(
            input_ids=ids,
            mm_token_type_ids=image.long(),
            pixel_values=torch.from_numpy(inputs["patches"][1].copy()),
            image_grid_thw=torch.tensor([[1, 4, 2]]),
        ).logits[0]
    # The last of the prompt, and the one that is decoded.
    return [float(f"{v:.7g}") for v in out[-2:].flatten().tolist()[::STEP]]


NAMES = {
    "token_embd": "model.language_model.embed_tokens", "output_norm": "model.language_model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "v.position_embd": "model.visual.pos_embed",
    "v.post_ln": "model.visual.merger.norm", "mm.0": "model.visual.merger.linear_fc1",
    "mm.2": "model.visual.merger.linear_fc2",
}
TOWER = {
    "ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2", "norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2",
}


def gguf_weights(paths, deepstack):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    out, frames = {}, {}
    for tensor in (t for path in paths for t in GGUFReader(path).tensors):
        shape = [int(n) for n in reversed(tensor.shape)]
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        name = tensor.name
        if name.startswith("v.patch_embd.weight"):
            frames[name] = values
            continue
        stem, leaf = name.rsplit(".", 1)
        block = re.fullmatch(r"(v\.)?(blk|deepstack)\.(\d+)\.(.+)", stem)
        if name == "v.patch_embd.bias":
            stem = "model.visual.patch_embed.proj"
        elif not block:
            stem = NAMES[stem]
        elif block[2] == "deepstack":
            stem = f"model.visual.deepstack_merger_list.{deepstack.index(int(block[3]))}.{TOWER[block[4]]}"
        elif block[1]:
            stem = f"model.visual.blocks.{block[3]}.{TOWER[block[4]]}"
        else:
            stem = f"model.language_model.layers.{block[3]}.{NAMES[block[4]]}"
        out[f"{stem}.{leaf}"] = values
    both = [frames["v.patch_embd.weight"], frames["v.patch_embd.weight.1"]]
    out["model.visual.patch_embed.proj.weight"] = np.stack(both, axis=2)
    return out


def main():
    folder = sys.argv[1]
    inputs = read(os.path.join(folder, "inputs.safetensors"))
    out = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            config = json.load(open(os.path.join(path, "config.json")))
            weights = dequantised(read(os.path.join(path, "model.safetensors")), config["quantization_config"])
            out[name] = logits(config, weights, inputs)
            print(name, file=sys.stderr)
    for name in ["tiny-ocr-qwen3_vl-q8_0.gguf", "tiny-ocr-qwen3_vl-q4_k_m.gguf"] if len(sys.argv) > 2 else []:
        config = json.load(open(os.path.join(FIXTURES, "..", "tiny-ocr-qwen3_vl", "config.json")))
        files = [os.path.join(sys.argv[2], f) for f in (name, "tiny-ocr-qwen3_vl-mmproj-f16.gguf")]
        weights = gguf_weights(files, config["vision_config"]["deepstack_visual_indexes"])
        out[name] = logits(config, weights, inputs)
        print(name, file=sys.stderr)
    print("{\n" + ",\n".join(f"{json.dumps(n)}:{json.dumps(v, separators=(',', ':'))}" for n, v in out.items()) + "\n}")


main()
