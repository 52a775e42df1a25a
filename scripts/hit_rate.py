#!/usr/bin/env python3
"""Hit rate of a pool of experts against its size, as a plot and a table.

    cargo bench -p turbospark --bench simulation -- hits routing.json > hits.json
    scripts/hit_rate.py hits.json --svg docs/hit-rate.svg

The table, in Markdown, goes to stdout.
"""
import argparse
import json

COLOURS = ["#9a9a9a", "#c8a01e", "#c8501e", "#2e8b3d", "#1f6fb4", "#7a4fa3", "#8a6d00", "#00798c"]
LEFT, TOP, WIDTH, HEIGHT = 60, 20, 560, 340


def svg(curves):
    low = min(y for c in curves for _, y in c["points"])
    low = int(low * 10) / 10
    at = lambda x, y: (LEFT + x * WIDTH, TOP + (1 - y) / (1 - low) * HEIGHT)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {TOP + HEIGHT + 50}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{LEFT + WIDTH + 30}" height="{TOP + HEIGHT + 50}" fill="white"/>']
    steps = [i / 10 for i in range(int(low * 10), 11)]
    for y in steps:
        px, py = at(0, y)
        out.append(f'<path d="M{px:.0f} {py:.0f}h{WIDTH}" stroke="#ddd"/><text x="{px - 8:.0f}" y="{py + 4:.0f}" '
                   f'text-anchor="end">{100 * y:.0f} %</text>')
    for x in (0, 0.25, 0.5, 0.75, 1):
        px, py = at(x, low)
        out.append(f'<path d="M{px:.0f} {py:.0f}v-{HEIGHT}" stroke="#ddd"/><text x="{px:.0f}" y="{py + 18:.0f}" '
                   f'text-anchor="middle">{100 * x:.0f} %</text>')
    px, py = at(0.5, low)
    out.append(f'<text x="{px:.0f}" y="{py + 40:.0f}" text-anchor="middle">experts that fit into the pool</text>')
    for i, curve in enumerate(curves):
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(*p) for p in curve["points"]))
        colour, y = COLOURS[i % len(COLOURS)], TOP + HEIGHT - 18 * (len(curves) - i)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        out.append(f'<path d="M{LEFT + WIDTH - 150} {y - 4}h18" stroke="{colour}" stroke-width="3"/>'
                   f'<text x="{LEFT + WIDTH - 126}" y="{y}">{curve["policy"]}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hits")
    parser.add_argument("--svg")
    args = parser.parse_args()
    with open(args.hits) as file:
        hits = json.loads(next(line for line in file if line.startswith("{")))
    shown = [0.125, 0.25, 0.375, 0.5, 0.75, 0.875]
    print("| policy | " + " | ".join(f"{100 * x:.1f} %" for x in shown) + " |")
    print("| --- |" + " --- |" * len(shown))
    for curve in hits["curves"]:
        near = [min(curve["points"], key=lambda p: abs(p[0] - x))[1] for x in shown]
        print(f'| {curve["policy"]} | ' + " | ".join(f"{100 * y:.1f}" for y in near) + " |")
    if args.svg:
        with open(args.svg, "w") as file:
            file.write(svg(hits["curves"]))


if __name__ == "__main__":
    main()
