#!/usr/bin/env python3
"""turbospark beside transformers and llama.cpp, on the same random checkpoint; prints rates and ratios.

    scripts/peers.py qwen3-vl-2b --threads 2
    scripts/peers.py qwen3-vl-2b --gguf 2b-Q8_0.gguf --mmproj 2b-mmproj.gguf --quant q8_0

A peer that is not installed is named and left out. transformers needs torch, transformers and safetensors.
llama.cpp needs its programs on the path, and --gguf: the checkpoint (turbospark's JSON names its folder) turned
into GGUF by llama.cpp's own converter, with a real tokenizer's files beside the weights; --mmproj for pictures.
Run it on a quiet machine: the programs run one after the other, and the median of --reps counts.
"""
import argparse
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a shape that `turbospark bench --shape` takes, or the folder of a checkpoint")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--image", default="1024x1024")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--only", default="encode,prefill,decode")
    parser.add_argument("--isa", help="turbospark's instruction set; the peers take the best they were built for")
    parser.add_argument("--quant", help="turbospark's weights, such as q8_0")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="of transformers")
    parser.add_argument("--gguf", help="the text model for llama.cpp")
    parser.add_argument("--mmproj", help="the tower for llama.cpp")
    parser.add_argument("--turbospark", default="target/release/turbospark")
    parser.add_argument("--llama-bench", default="llama-bench")
    parser.add_argument("--llama-mtmd-cli", default="llama-mtmd-cli")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # set for the process that runs transformers
    return parser.parse_args()


def note(message):
    print(f"peers: {message}", file=sys.stderr)


def turbospark(a):
    program = shutil.which(a.turbospark) or shutil.which("turbospark")
    if not program:
        sys.exit(f"peers: there is no {a.turbospark}; cargo build --release makes it")
    model = [a.model] if os.path.isdir(a.model) else ["--shape", a.model]
    command = [program, "bench", *model, "--json", "--only", a.only, "--image", a.image]
    for key in ["threads", "prefill", "decode", "depth", "reps", "isa", "quant"]:
        value = getattr(a, key)
        if value is not None:
            command += [f"--{key}", str(value)]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if out.returncode != 0:
        sys.exit(out.returncode)
    return json.loads(out.stdout)


def of_turbospark(result):
    rates = {"rss": result["peak_rss_bytes"]}
    for part, key, name in [("image", "encode_s", "encode"), ("prefill", "tok_s", "prefill"), ("decode", "tok_s", "decode")]:
        if result.get(part):
            rates[name] = result[part][key]
    return rates


def transformers_here(a):
    """Runs in a process of its own, so that its memory is its own."""
    import torch
    from transformers import AutoModelForImageTextToText

    torch.set_num_threads(a.threads)
    dtype = getattr(torch, a.dtype)
    model = AutoModelForImageTextToText.from_pretrained(a.folder, dtype=dtype, attn_implementation="sdpa").eval()
    parts, rates = a.only.split(","), {}

    def median(run):
        times = []
        for _ in range(a.reps + 1):
            start = time.perf_counter()
            out = run()
            times.append(time.perf_counter() - start)
        return out, statistics.median(times[1:])

    def ids(n):
        return torch.randint(1000, 100000, (1, n))

    with torch.inference_mode():
        if "encode" in parts:
            vision = model.config.vision_config
            width, height = (int(side) // vision.patch_size for side in a.image.split("x"))
            patches = torch.randn(width * height, 3 * vision.temporal_patch_size * vision.patch_size**2).to(dtype)
            grid = torch.tensor([[1, height, width]])
            rates["encode"] = median(lambda: model.model.visual(patches, grid_thw=grid))[1]
        if "prefill" in parts:
            prompt = ids(a.prefill)
            run = lambda: model(input_ids=prompt, use_cache=True, logits_to_keep=1)
            rates["prefill"] = a.prefill / median(run)[1]
        if "decode" in parts:

            def run():
                cache = model(input_ids=ids(a.depth), use_cache=True, logits_to_keep=1).past_key_values
                start = time.perf_counter()
                for _ in range(a.decode):
                    cache = model(input_ids=ids(1), past_key_values=cache, use_cache=True).past_key_values
                return time.perf_counter() - start

            times = [run() for _ in range(a.reps + 1)][1:]
            rates["decode"] = a.decode / statistics.median(times)
    rates["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(rates))


def of_transformers(a, folder):
    missing = [name for name in ["torch", "transformers", "safetensors"] if importlib.util.find_spec(name) is None]
    if missing:
        return note(f"transformers left out: {', '.join(missing)} not installed")
    out = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--folder", folder], stdout=subprocess.PIPE, text=True)
    if out.returncode != 0:
        return note("transformers failed, see above")
    return json.loads(out.stdout.splitlines()[-1])


def of_llama(a):
    program = shutil.which(a.llama_bench)
    if not program:
        return note(f"llama.cpp left out: there is no {a.llama_bench}")
    if not a.gguf:
        return note("llama.cpp left out: it needs the checkpoint as --gguf (see --help)")
    parts, rates = a.only.split(","), {}
    prefill = ["-p", str(a.prefill), "-n", "0"]
    decode = ["-p", "0", "-n", str(a.decode), "-d", str(a.depth)]
    for name, args in [("prefill", prefill), ("decode", decode)]:
        if name not in parts:
            continue
        command = [program, "-m", a.gguf, "-t", str(a.threads), "-r", str(a.reps), "-ngl", "0", "-o", "json", *args]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if out.returncode != 0:
            return note("llama-bench failed, see above")
        rates[name] = statistics.median(json.loads(out.stdout)[0]["samples_ts"])
    if "encode" in parts:
        seconds = llama_encode(a)
        if seconds:
            rates["encode"] = seconds
    return rates


def llama_encode(a):
    program = shutil.which(a.llama_mtmd_cli)
    if not program or not a.mmproj:
        return note(f"llama.cpp's tower left out: it needs {a.llama_mtmd_cli} and --mmproj")
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "noise.bmp")
        write_noise(picture, *(int(side) for side in a.image.split("x")))
        command = [program, "-m", a.gguf, "--mmproj", a.mmproj, "--image", picture, "-p", "Describe.", "-n", "1"]
        command += ["-t", str(a.threads), "-c", "8192", "--temp", "0", "-ngl", "0", "--no-mmproj-offload", "-lv", "4"]
        times = []
        for _ in range(a.reps):
            out = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            found = re.findall(r"encod\w+ done in (\d+)|slice encoded in (\d+)", out.stdout.decode(errors="replace"))
            times += [int(done or encoded) / 1000 for done, encoded in found[:1]]
    return statistics.median(times) if times else note("llama.cpp printed no encode time")


def write_noise(path, width, height):
    row = 3 * width + -3 * width % 4
    data = random.Random(1).randbytes(row * height)
    head = struct.pack("<2sIHHI", b"BM", 54 + len(data), 0, 0, 54)
    head += struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(data), 2835, 2835, 0, 0)
    with open(path, "wb") as file:
        file.write(head + data)


def table(a, all_rates):
    ours = all_rates["turbospark"]
    rows = [("encode", f"encode {a.image}, s", True), ("prefill", f"prefill {a.prefill}, tokens/s", False)]
    rows += [("decode", f"decode after {a.depth}, tokens/s", False), ("rss", "peak memory, GB", True)]
    print(f"{a.model}, {a.threads} threads: {'':14}" + "".join(f"{name:>26}" for name in all_rates))
    for key, label, less_is_more in rows:
        cells = []
        for name, rates in all_rates.items():
            value = rates.get(key)
            if value is None:
                cells.append("-")
                continue
            shown = f"{value / 1e9 if key == 'rss' else value:.2f}"
            if name != "turbospark" and ours.get(key):
                ratio = value / ours[key] if less_is_more else ours[key] / value
                shown += f" (turbospark {ratio:.2f}x)"
            cells.append(shown)
        print(f"{label:36}" + "".join(f"{cell:>26}" for cell in cells))


def main():
    a = arguments()
    if a.folder:
        return transformers_here(a)
    result = turbospark(a)
    all_rates = {"turbospark": of_turbospark(result)}
    others = {"transformers": of_transformers(a, result["model_path"]), "llama.cpp": of_llama(a)}
    all_rates.update({name: rates for name, rates in others.items() if rates})
    if a.json:
        print(json.dumps({"turbospark": result, "rates": all_rates}))
    else:
        table(a, all_rates)


main()
