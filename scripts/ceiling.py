#!/usr/bin/env python3
"""Case S18 at the size of real models: tokens, logits and peak memory under ceilings, held from outside where it can be.

    scripts/ceiling.py target/release/turbospark CHECKPOINT [--cgroup DIR] page.png other.png ...

CHECKPOINT is a folder; one of random weights will do (`turbospark bench --shape qwen3-vl-2b` writes it), and gets a chat
template for the time of the run if it has none. Each ceiling (all that the model takes, a half, a quarter, the least) runs
`read` over the pages, whose sizes should differ, and `trace` for 32 greedy tokens and their logits. DIR is a version 1
or 2 memory group that this user may write to (an empty one, made for this): then the ceiling is the kernel's limit too,
page cache included, and a program that needs more is killed. Peak memory is the kernel's account: VmHWM as the program
reads it at its end, and the group's own maximum. Exits with 1 where anything differs or is above.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TEMPLATE = pathlib.Path(__file__).parent.parent / "assets/tiny-ocr-qwen3_vl/chat_template.jinja"
MIB = 1 << 20


class Group:
    """A memory group that programs are started in; nothing where there is none."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder) if folder else None
        self.two = bool(folder) and (self.folder / "memory.max").exists()

    def limit(self, limit):
        if self.folder:
            name = "memory.max" if self.two else "memory.limit_in_bytes"
            (self.folder / name).write_text(str(limit))
            for peak in ("memory.peak", "memory.max_usage_in_bytes"):
                if (self.folder / peak).exists():
                    try:
                        (self.folder / peak).write_text("0")
                    except OSError:
                        pass

    def enter(self):
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        if not self.folder:
            return None
        return int((self.folder / ("memory.peak" if self.two else "memory.max_usage_in_bytes")).read_text())


def run(command, group):
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=group.enter)
    return done.returncode, done.stdout, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("checkpoint")
    parser.add_argument("pages", nargs="+")
    parser.add_argument("--cgroup")
    parser.add_argument("--context", default="2048")
    args = parser.parse_args()
    model, group, none = pathlib.Path(args.checkpoint), Group(args.cgroup), Group(None)
    template = model / "chat_template.jinja"
    own = not template.exists()
    if own:
        template.write_bytes(TEMPLATE.read_bytes())
    try:
        sys.exit(check(args, str(model), group, none))
    finally:
        if own:
            template.unlink()


def check(args, model, group, none):
    common = ["--context", args.context, "--model", model]
    _, _, refusal = run([args.program, "inspect", "--plan", "--memory", "8M", *common], none)
    least = int(re.search(r"--memory (\d+)M", refusal).group(1))
    weights = sum(f.stat().st_size for f in pathlib.Path(model).iterdir())
    whole = weights // MIB + least
    failed, first = False, None
    print("| ceiling | peak resident | of the ceiling | peak of the group | read | tokens and logits |")
    print("| --- | --- | --- | --- | --- | --- |")
    for ceiling in (whole, max(weights // 2 // MIB, least), max(weights // 4 // MIB, least), least):
        group.limit(ceiling * MIB)
        memory = [*common, "--memory", f"{ceiling}M"]
        code, out, err = run([args.program, "read", "--json", "--max-tokens", "16", *memory, *args.pages], group)
        pages = [json.loads(line) for line in out.splitlines()]
        if code not in (0, 1) or len(pages) != len(args.pages) or any("error" in p for p in pages):
            print(f"{ceiling} MiB: exit {code}\n{err}{out}", file=sys.stderr)
            failed = True
            continue
        of_group = group.peak()
        with tempfile.TemporaryDirectory() as folder:
            request, trace = pathlib.Path(folder) / "request.json", pathlib.Path(folder) / "trace.safetensors"
            image = {"type": "image_url", "image_url": {"url": "file://" + os.path.abspath(args.pages[0])}}
            content = [image, {"type": "text", "text": "What does it say?"}]
            request.write_text(json.dumps({"messages": [{"role": "user", "content": content}]}))
            # Its tensors are kept in memory until they are written: it runs outside of the group.
            command = [args.program, "trace", "--precision", "auto", "--max-tokens", "32", "--request", str(request), "--out", str(trace)]
            code, _, err = run([*command, *memory], none)
            digest = hashlib.sha256(trace.read_bytes()).hexdigest() if code == 0 else err
        said = ([(p["text"], p["usage"]) for p in pages], digest)
        first = first or said
        peak = max(p["memory"]["peak"] for p in pages)
        same = "equal" if said == first else "DIFFER"
        failed |= said != first or peak > 1.03 * ceiling * MIB
        read = pages[-1].get("reads", {}).get("bytes", 0)
        shown = "-" if of_group is None else f"{of_group / MIB:.0f} MiB"
        print(f"| {ceiling} MiB | {peak / MIB:.0f} MiB | {100 * peak / ceiling / MIB:.0f} % | {shown} | "
              f"{read / 1e9:.1f} GB | {same} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    main()
