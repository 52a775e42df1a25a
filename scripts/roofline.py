#!/usr/bin/env python3
"""What `turbospark bench --json` measured, as a table and as a roofline plot.

    turbospark bench --shape qwen3-vl-2b --threads 2 --json > 2b.json
    scripts/roofline.py "2B bf16=2b.json" "2B Q4_K=2b-q4_k.json" --svg docs/roofline.svg

The roofs are those that the first file's run measured. A point's place on the lower axis is its operations over the
bytes of the checkpoint, for one picture, one chunk of a prompt or one decoded token. The table, in Markdown, goes to
stdout.
"""
import argparse
import json
import math

COLOURS = ["#1f6fb4", "#c8501e", "#2e8b3d", "#7a4fa3", "#8a6d00", "#00798c"]
WEIGHTS_PER_BYTE = {
    None: 1 / 2,
    "q8_0": 32 / 34,
    "q6_k": 256 / 210,
    "q5_k": 256 / 176,
    "q4_k": 256 / 144,
    "q4_0": 32 / 18,
}
CHUNK = 512  # rows of a prompt that share one pass over the weights
LEFT, TOP, WIDTH, HEIGHT = 70, 30, 640, 380


def points(run):
    """(name, operations a byte, TFLOP/s, share, rate in words) of each part."""
    weights = run["weights_bytes"]
    for e in run["images"]:
        rate = f'{e["encode_s"]:.2f} s, {e["tflops"]:.2f} TFLOP/s'
        yield f'encode {e["size"]}', e["tflop"] * 1e12 / weights, e["tflops"], share(e, "peak"), rate
    for p in run["prefills"]:
        passes = math.ceil(p["tokens"] / CHUNK)
        rate = f'{p["tok_s"]:.0f} tokens/s, {p["tflops"]:.2f} TFLOP/s'
        yield f'prefill {p["tokens"]}', p["tflop"] * 1e12 / passes / weights, p["tflops"], share(p, "peak"), rate
    d = run["decode"]
    if d:
        # Two operations for each weight, for every sequence of the batch.
        per_byte = d["batch"] * WEIGHTS_PER_BYTE[run["quant"]] * 2
        tflops = d["gb_s"] * per_byte / 1e3
        rate = f'{d["tok_s"]:.1f} tokens/s, {d["gb_s"]:.1f} GB/s'
        yield f'decode, batch {d["batch"]}', per_byte, tflops, share(d, "bandwidth"), rate


def share(part, roof):
    value = part.get(f"{roof}_share")
    return "" if value is None else f"{100 * value:.0f} % of {'the peak' if roof == 'peak' else 'reading'}"


def svg(series, limits):
    peaks = [(f'{p["unit"]} {p["inputs"]}', p["tops"]) for p in limits["peaks"] if p["inputs"] != "int8"]
    slope = limits["read_gb_s"] / 1e3
    xs = [x for _, run in series for _, x, *_ in points(run)]
    ys = [y for _, run in series for _, _, y, *_ in points(run)]
    x0, x1 = math.floor(math.log10(min(xs + [1]))), math.ceil(math.log10(max(xs + [1000])))
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max([t for _, t in peaks] + ys)))
    at = lambda x, y: (
        LEFT + (math.log10(x) - x0) / (x1 - x0) * WIDTH,
        TOP + (y1 - math.log10(y)) / (y1 - y0) * HEIGHT,
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {TOP + HEIGHT + 60 + 18 * len(series)}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/>',
    ]
    text = lambda x, y, s, more="": out.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{s}</text>')
    line = lambda a, b, more: out.append(
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" {more}/>'
    )
    for e in range(x0, x1 + 1):
        x, y = at(10**e, 10**y0)
        line((x, TOP), (x, y), 'stroke="#ddd"')
        text(x, y + 18, f"{10**e:g}", 'text-anchor="middle"')
    for e in range(y0, y1 + 1):
        x, y = at(10**x0, 10**e)
        line((x, y), (LEFT + WIDTH, y), 'stroke="#ddd"')
        text(x - 8, y + 4, f"{10**e:g}", 'text-anchor="end"')
    text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, "operations for a byte of weights", 'text-anchor="middle"')
    text(LEFT, TOP - 12, "TFLOP/s")
    for name, top in peaks:
        line(at(max(top / slope, 10**x0), top), at(10**x1, top), 'stroke="#444" stroke-width="1.5"')
        text(LEFT + WIDTH - 4, at(1, top)[1] - 5, name, 'text-anchor="end"')
    top = max(t for _, t in peaks)
    start = max(10**x0, 10**y0 / slope)
    line(at(start, start * slope), at(min(top / slope, 10**x1), min(top, 10**x1 * slope)), 'stroke="#444" stroke-width="1.5"')
    text(*at(start * 1.5, start * 1.2 * slope), f'reading {limits["read_gb_s"]:.0f} GB/s', 'dx="14" dy="14"')
    for i, (label, run) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        for name, x, y, *_ in points(run):
            cx, cy = at(x, y)
            out.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4.5" fill="{colour}"><title>{label}: {name}</title></circle>')
        y = TOP + HEIGHT + 62 + 18 * i
        out.append(f'<circle cx="{LEFT + 6}" cy="{y - 4}" r="4.5" fill="{colour}"/>')
        text(LEFT + 18, y, f"{label}: " + ", ".join(name for name, *_ in points(run)))
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LABEL=FILE")
    parser.add_argument("--svg", help="where the plot goes")
    a = parser.parse_args()
    series = []
    for item in a.runs:
        label, _, file = item.rpartition("=")
        with open(file) as f:
            series.append((label or file, json.load(f)))
    print("| run | part | rate | share |\n| --- | --- | --- | --- |")
    for label, run in series:
        for name, _, _, part, rate in points(run):
            print(f"| {label} | {name} | {rate} | {part} |")
    if a.svg:
        with open(a.svg, "w") as f:
            f.write(svg(series, series[0][1]["limits"]))


main()
