"""Measures the divergence of logits from exact arithmetic for every format and precision.

    python tests/benchmarks/accuracy/formats.py smollm2 gemma3-270m --files /tmp/files  # all formats, and files as is
    python tests/benchmarks/accuracy/formats.py smollm2 --types Q4_0,IQ2_XS,Q4_K_M -n 256

llama.cpp requantizes the model to each type (see requantize.py). Then exact arithmetic on the weights of that file,
localinfer with --precision fast and high, and llama.cpp with a batch of 512 evaluate the same tokens. The table has the
mean of KL(exact || x) over all positions, in nats. The divergence of `fast` should not exceed that of llama.cpp, and
that of `high` should not exceed 1e-5. The logits of two engines are in memory at a time, 4 bytes x positions x
vocabulary each. --files keeps the requantized files for the next run, because some types take llama.cpp half a minute.
Each result is appended to --output as a JSON line. A type that fails shows the reason, and the others continue. Prints
a Markdown table. Needs the dependency groups `test` and `bench`.
"""

import argparse
import collections
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from fidelity import DATA, Job, Logits, distance, exact_logits, llama_cpp, localinfer_prefill
from requantize import MIXES, NEED_IMPORTANCE, TYPES, measure_importance, read_tokens, requantize

from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.hub.resolve import find

AS_IT_IS = "as it is"
HIGH_AT_MOST = 1e-5
SOURCES = {
    "fast": localinfer_prefill(precision="fast"),
    "high": localinfer_prefill(precision="high"),
    "llama.cpp": llama_cpp(512),
}


def files(source: Path, types: Sequence[str], folder: Path, tokens: list[int]) -> Iterator[tuple[str, Path | str]]:
    """Yield each type with the path of the requantized model, or with the reason why there is none."""
    importance = measure_importance(source, tokens) if set(types) & set(NEED_IMPORTANCE) else {}
    for name in types:
        target = folder / f"{source.stem}-{name}.gguf"
        try:
            if name != AS_IT_IS and not target.exists():
                requantize(source, target.with_suffix(".part"), name, importance).replace(target)
            yield name, source if name == AS_IT_IS else target
        except RuntimeError as error:
            yield name, str(error)


def divergences(job: Job, n_vocab: int) -> dict[str, float | str]:
    """Return the mean KL(exact || engine) of each engine, or the reason why there is none."""
    shape = (len(job.tokens), n_vocab)
    truth = np.empty(shape, np.float32)
    exact_logits(job, truth)
    result: dict[str, float | str] = {}
    for name, source in SOURCES.items():
        logits: Logits = np.empty(shape, np.float32)
        try:
            source(job, logits)
            result[name] = float(distance(truth, logits).divergence.mean())
        except UnsupportedError:
            result[name] = "not supported"
    return result


def contents(file: GGUF) -> str:
    """Return the types of all matrices except the token embeddings."""
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    counts = collections.Counter(tensor.type_name for tensor in matrices if tensor.name != "token_embd.weight")
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def row(model: str, type_name: str, path: Path, tokens: list[int], threads: int) -> dict[str, object]:
    """Return one result as a JSON object."""
    file = open_gguf(path)
    facts = {"model": Path(model).stem, "type": type_name, "contents": contents(file)}
    job = Job(path, tokens, threads, "float32")
    return facts | divergences(job, file.tensors["token_embd.weight"].shape[0])


def line(record: dict[str, object]) -> str:
    """Return a result as a row of the table."""
    fast, high, reference = (record.get(name) for name in SOURCES)
    ratio = fast / reference if isinstance(fast, float) and isinstance(reference, float) else None
    met = [ratio <= 1] if ratio is not None else []
    met += [high <= HIGH_AT_MOST] if isinstance(high, float) else []
    cells = [f"{value:.2g}" if isinstance(value, float) else str(value or "") for value in (fast, high, reference)]
    cells += ["" if ratio is None else f"**{ratio:.2f}**", "yes" if met and all(met) else "**no**" if met else ""]
    return f"| {record['model']} | {record['type']} | {record.get('contents', '')} | {' | '.join(cells)} |"


def main() -> None:
    """Parse the command line and print a row for each model and type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names of downloaded models, or paths")
    parser.add_argument("--types", help=f"default: {AS_IT_IS},{','.join((*TYPES, *MIXES))}")
    parser.add_argument("-n", type=int, default=512, help="positions (default: 512)")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of both engines (default: 2)")
    parser.add_argument("--text", type=Path, default=DATA / "varied.txt")
    parser.add_argument("--files", type=Path, help="keep requantized models here, about 100 and 200 MB each")
    parser.add_argument("-o", "--output", type=Path, default=Path("formats.jsonl"), help="default: formats.jsonl")
    arguments = parser.parse_args()
    types = arguments.types.split(",") if arguments.types else [AS_IT_IS, *TYPES, *MIXES]
    print("| model | type | matrices | fast | high | llama.cpp | fast / llama.cpp | met |")
    print("|---|---|---|---:|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.files or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for model in arguments.models:
            source = find(model)
            tokens = read_tokens(source, arguments.text, arguments.n)
            for name, file in files(source, types, folder, tokens):
                try:
                    if isinstance(file, str):
                        raise RuntimeError(file)
                    record = row(model, name, file, tokens, arguments.threads)
                except Exception as error:
                    record = {"model": model, "type": name, "fast": f"failed: {error}"}
                print(line(record), flush=True)
                with arguments.output.open("a") as output:
                    output.write(json.dumps(record) + "\n")
                if isinstance(file, Path) and not arguments.files and name != AS_IT_IS:
                    file.unlink()


if __name__ == "__main__":
    main()
