"""How far are the logits from exact arithmetic, for every format and precision?

    python tests/benchmarks/accuracy/formats.py smollm2 gemma3-270m --files /tmp/files  # all formats, and files as is
    python tests/benchmarks/accuracy/formats.py smollm2 --types Q4_0,IQ2_XS,Q4_K_M -n 256

The model is requantized to each type by llama.cpp (requantize.py says how), and then asked the same tokens of varied
text: by exact arithmetic on the weights of that very file, by localinfer with --precision fast and high, and by
llama.cpp with a batch of 512. A number is the mean of KL(exact || x) over all positions, in nats. Fast should be no
farther away than llama.cpp, high nowhere farther than 1e-5. The logits of two sources are in memory at a time, 4
bytes x positions x vocabulary each. --files keeps the requantized files for the next run: some types take llama.cpp
half a minute. Every result is appended to --output as a line of JSON; a type that fails says why, and the others go
on. Needs the dependency groups `test` and `bench`. Prints a Markdown table.
"""

import argparse
import collections
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from fidelity import DATA, Job, Logits, distance, exact, llama_cpp, localinfer_prefill
from requantize import MIXES, NEED_IMPORTANCE, TYPES, importance_of, requantize, tokens_of

from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF, open_gguf
from localinfer.models.registry import find

AS_IT_IS = "as it is"
HIGH_AT_MOST = 1e-5
SOURCES = {
    "fast": localinfer_prefill(precision="fast"),
    "high": localinfer_prefill(precision="high"),
    "llama.cpp": llama_cpp(512),
}


def files(source: Path, types: Sequence[str], folder: Path, tokens: list[int]) -> Iterator[tuple[str, Path | str]]:
    """Each type, and the model in it, or why there is none."""
    importance = importance_of(source, tokens) if set(types) & set(NEED_IMPORTANCE) else {}
    for name in types:
        target = folder / f"{source.stem}-{name}.gguf"
        try:
            if name != AS_IT_IS and not target.exists():
                requantize(source, target.with_suffix(".part"), name, importance).replace(target)
            yield name, source if name == AS_IT_IS else target
        except RuntimeError as error:
            yield name, str(error)


def divergences(job: Job, n_vocab: int) -> dict[str, float | str]:
    """Of each source, the mean KL(exact || source), or why there is none."""
    shape = (len(job.tokens), n_vocab)
    truth = np.empty(shape, np.float32)
    exact(job, truth)
    result: dict[str, float | str] = {}
    for name, source in SOURCES.items():
        logits: Logits = np.empty(shape, np.float32)
        try:
            source(job, logits)
            result[name] = float(distance(truth, logits).divergence.mean())
        except Unsupported:
            result[name] = "not supported"
    return result


def contents(file: GGUF) -> str:
    """Which types the matrices have, the tokens' aside."""
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    counts = collections.Counter(tensor.type_name for tensor in matrices if tensor.name != "token_embd.weight")
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def row(model: str, type_name: str, path: Path, tokens: list[int], threads: int) -> dict[str, object]:
    """One result."""
    file = open_gguf(path)
    facts = {"model": Path(model).stem, "type": type_name, "contents": contents(file)}
    job = Job(path, tokens, threads, "float32")
    return facts | divergences(job, file.tensors["token_embd.weight"].shape[0])


def line(record: dict[str, object]) -> str:
    """A result as a row of the table."""
    fast, high, theirs = (record.get(name) for name in SOURCES)
    ratio = fast / theirs if isinstance(fast, float) and isinstance(theirs, float) else None
    met = [ratio <= 1] if ratio is not None else []
    met += [high <= HIGH_AT_MOST] if isinstance(high, float) else []
    cells = [f"{value:.2g}" if isinstance(value, float) else str(value or "") for value in (fast, high, theirs)]
    cells += ["" if ratio is None else f"**{ratio:.2f}**", "yes" if met and all(met) else "**no**" if met else ""]
    return f"| {record['model']} | {record['type']} | {record.get('contents', '')} | {' | '.join(cells)} |"


def main() -> None:
    """Parse the command line; a row for each model and type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names that were pulled, or paths")
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
            tokens = tokens_of(source, arguments.text, arguments.n)
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
