"""Embeddings of 256 sentences: sentences per second, and their cosine similarity to those of transformers.

    python tests/benchmarks/embedding.py CHECKPOINT --peer path/to/python-with-llama_cpp --torch path/to/python

CHECKPOINT is a directory such as that of all-MiniLM-L6-v2. It is converted to F16 and Q8_0. Each engine embeds all
sentences in one call, interleaved and several times, and the best time counts. llama.cpp and transformers run in the
given Pythons; an engine without a Python is skipped. All engines use two threads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from locations import DATA, PYTHONPATH

sys.path[:0] = PYTHONPATH

import checkpoints  # noqa: E402

TEXTS = sorted((DATA / "quality").glob("*.txt"))
COUNT, WORDS, ROUNDS, THREADS = 256, (4, 40), 5, 2

LLAMA_CPP = """
import json, sys, time, llama_cpp, numpy as np
path, texts, out, rounds, threads = json.load(sys.stdin)
model = llama_cpp.Llama(path, embedding=True, n_ctx=0, n_batch=512, n_ubatch=512, n_threads=threads,
                        n_threads_batch=threads, verbose=False)
times = []
for _ in range(rounds):
    began = time.perf_counter()
    vectors = model.embed(texts, normalize=True)
    times.append(time.perf_counter() - began)
np.save(out, np.array(vectors, np.float32))
print(json.dumps(min(times)))
"""
TRANSFORMERS = """
import json, sys, time, torch, numpy as np
from transformers import AutoModel, AutoTokenizer
path, texts, out, rounds, threads = json.load(sys.stdin)
torch.set_num_threads(threads)
tokenizer, model, times = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval(), []
def embed(texts):  # as sentence-transformers: sorted by length, batches of 32, padded
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    found = [None] * len(texts)
    for first in range(0, len(texts), 32):
        part = order[first : first + 32]
        batch = tokenizer([texts[i] for i in part], padding=True, truncation=True, max_length=512, return_tensors="pt")
        mask = batch["attention_mask"][..., None].float()
        states = model(**batch).last_hidden_state
        means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
        for i, row in zip(part, means):
            found[i] = row.numpy()
    return np.stack(found)
with torch.inference_mode():
    for _ in range(rounds):
        began = time.perf_counter()
        vectors = embed(texts)
        times.append(time.perf_counter() - began)
np.save(out, vectors)
print(json.dumps(min(times)))
"""
OURS = """
import json, sys, time, localinfer, numpy as np
path, texts, out, rounds, threads = json.load(sys.stdin)
times = []
with localinfer.load(path, threads=threads) as model:
    model.embed(texts[:8])
    for _ in range(rounds):
        began = time.perf_counter()
        vectors = model.embed(texts)
        times.append(time.perf_counter() - began)
np.save(out, vectors)
print(json.dumps(min(times)))
"""


def make_sentences() -> list[str]:
    """Return texts of 4 to 40 words from the evaluation data of quality.py."""
    words = [word for path in TEXTS for word in path.read_text(encoding="utf-8").split()]
    lengths = np.random.default_rng(1).integers(*WORDS, COUNT)
    starts = np.random.default_rng(2).integers(0, len(words) - WORDS[1], COUNT)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def time_program(python: str, program: str, path: Path, texts: list[str]) -> tuple[float, np.ndarray]:
    """Run a program and return its best time in seconds and its embeddings."""
    with tempfile.NamedTemporaryFile(suffix=".npy") as out:
        payload = json.dumps([str(path), texts, out.name, ROUNDS, THREADS])
        result = subprocess.run([python, "-c", program], input=payload, capture_output=True, text=True, check=True)
        return float(result.stdout.splitlines()[-1]), np.load(out.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--peer", help="Python with llama_cpp")
    parser.add_argument("--torch", help="Python with torch and transformers")
    parser.add_argument("--turns", type=int, default=2, help="number of runs of each engine")
    arguments = parser.parse_args()
    texts = make_sentences()
    with tempfile.TemporaryDirectory() as folder:
        files = {type: checkpoints.as_type(arguments.checkpoint, Path(folder) / f"{type}.gguf", type)
                 for type in ("F16", "Q8_0")}  # fmt: skip
        runs = {f"localinfer {type}": (sys.executable, OURS, path) for type, path in files.items()}
        if arguments.peer:
            runs |= {f"llama.cpp {type}": (arguments.peer, LLAMA_CPP, path) for type, path in files.items()}
        if arguments.torch:
            runs["torch F32"] = arguments.torch, TRANSFORMERS, arguments.checkpoint
        best: dict[str, float] = {}
        vectors: dict[str, np.ndarray] = {}
        for _ in range(arguments.turns):
            for name, (python, program, path) in runs.items():
                seconds, vectors[name] = time_program(python, program, path, texts)
                best[name] = min(seconds, best.get(name, seconds))
    exact = vectors.get("torch F32")
    print(f"| {COUNT} sentences | a second | cosine to torch, least | mean |\n|---|---|---|---|")
    for name, seconds in best.items():
        cosines = np.ones(1) if exact is None else (vectors[name] * exact).sum(axis=1)
        print(f"| {name} | {COUNT / seconds:.0f} | {cosines.min():.6f} | {cosines.mean():.6f} |")


if __name__ == "__main__":
    main()
