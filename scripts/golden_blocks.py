#!/usr/bin/env python3
"""Golden tensors of the block formats: random blocks, and what the public Python package `gguf` widens them to.

    pip install gguf==0.19.0 numpy safetensors
    scripts/golden_blocks.py
    scripts/golden_blocks.py --digests

The first writes crates/tensor/tests/data/blocks.safetensors, the same bytes each time: for each format
`<type>.blocks`, U8 [blocks, bytes], and `<type>.values`, F32 [blocks, elements]. The second prints instead the
digests in crates/tensor/tests/blocks.rs, which are of more blocks than should be stored.
"""
import argparse
import os
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize
from safetensors.numpy import save_file

# Where the f16 scales of a block lie.
SCALES = {
    T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.IQ4_NL: [0], T.MXFP4: [],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_XS: [0],
    T.IQ3_S: [0], T.IQ3_XXS: [0], T.IQ2_S: [0], T.IQ2_XS: [0], T.IQ2_XXS: [0], T.IQ1_S: [0], T.IQ1_M: None,
    T.TQ1_0: [52], T.TQ2_0: [64],
}
# Zeros, the least and largest subnormal, the least normal, the largest, infinity, a NaN, and an ordinary one.
EDGES = np.array([0x8000, 0x0001, 0x83FF, 0x0400, 0xFBFF, 0x7C00, 0x7E01, 0xA123], dtype=np.uint16)


def set_scale(blocks, kind, column, bits):
    """Writes the f16 `bits`, one a block, as the scale at `column`."""
    if kind is T.IQ1_M:  # four bits on top of each of four words
        words = blocks[:, 48:].copy().view("<u2")
        words = (words & 0x0FFF) | (bits[:, None] >> np.array([0, 4, 8, 12], dtype=np.uint16) & 15) << 12
        blocks[:, 48:] = words.astype("<u2").view(np.uint8)
    else:
        blocks[:, column : column + 2] = bits.astype("<u2").view(np.uint8).reshape(-1, 2)


def widen(blocks, kind):
    with np.errstate(all="ignore"):
        return dequantize(blocks, kind)


def golden(path):
    tensors = {}
    for number, (kind, columns) in enumerate(SCALES.items()):
        elements, size = GGML_QUANT_SIZES[kind]
        random = np.random.default_rng(number)
        half = 8 if elements == 32 else 4
        blocks = random.integers(0, 256, (half, size), dtype=np.uint8)
        # Edges, with the second scale elsewhere; the digests are of ordinary scales.
        for nth, column in enumerate([None] if columns is None else columns):
            edges = EDGES if half == 8 else EDGES[[1, 2, 4, 6]] if number % 2 else EDGES[[0, 3, 4, 5]]
            set_scale(blocks, kind, column, np.roll(edges, nth))
        if kind is T.MXFP4:
            blocks[:, 0] = [0, 1, 2, 3, 127, 253, 254, 255]
        tensors[f"{kind.name}.blocks"] = blocks
        tensors[f"{kind.name}.values"] = widen(blocks, kind)
    save_file(tensors, path, metadata={"made_by": "scripts/golden_blocks.py"})
    print(f"{path}: {os.path.getsize(path)} bytes, {len(tensors) // 2} formats")


def digests():
    mask = (1 << 64) - 1

    def bytes_of(count, state=7):  # SplitMix64, the upper byte of each
        out = bytearray()
        for _ in range(count):
            state = (state + 0x9E3779B97F4A7C15) & mask
            z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            out.append((z ^ z >> 31) >> 56)
        return np.frombuffer(bytes(out), dtype=np.uint8)

    # NVFP4 is read as codes with scales apart: its digest is in crates/weights/src/gguf/nvfp4.rs.
    for kind, columns in {**SCALES, T.NVFP4: []}.items():
        size = GGML_QUANT_SIZES[kind][1]
        blocks = bytes_of(512 * size).reshape(512, size).copy()
        columns = [54] if columns is None else columns
        for column in columns:
            blocks[:, column + 1] &= 0xBF  # below the exponents of infinity and NaN
        digest = 0xCBF29CE484222325  # FNV-1a
        for byte in widen(blocks, kind).tobytes():
            digest = (digest ^ byte) * 0x100000001B3 & mask
        text = f"{digest:016x}"
        print(f"(DType::{kind.name}, &{columns}, 0x{'_'.join(text[i : i + 4] for i in range(0, 16, 4))}),")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digests", action="store_true")
    if parser.parse_args().digests:
        digests()
    else:
        golden(os.path.join(os.path.dirname(__file__), "../crates/tensor/tests/data/blocks.safetensors"))
