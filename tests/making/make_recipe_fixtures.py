"""Write tests/data/recipes.json.xz: the tensor types that llama.cpp chooses for every quantization recipe.

    python tests/making/make_recipe_fixtures.py                   # for all of `recipe_models`
    python tests/making/make_recipe_fixtures.py llama4 granitemoe  # for these

Needs the dependency groups `test` and `bench`. llama_model_quantize does a dry run on files without weights, and its
log is parsed. "Q6_K*2 Q4_K*20" are types by layer, followed by the names of the tensors in a layer that have them.
"""

import ctypes
import itertools
import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import recorded  # noqa: E402
from recipe_models import SHAPES, Shape  # noqa: E402

from localinfer.quantization.recipes import RECIPES  # noqa: E402

LOG: list[str] = []


@llama_cpp.llama_log_callback
def append_log(level: int, text: bytes, user_data: object) -> None:
    """Append a message of llama.cpp to the log."""
    LOG.append(text.decode())


def main() -> None:
    """Write the types of every shape and recipe, with and without an importance matrix."""
    llama_cpp.llama_log_set(append_log, ctypes.c_void_p())
    known = recorded.read("recipes") if sys.argv[1:] else {}
    actual: dict[str, object] = {**known, "llama_cpp_python": version("llama-cpp-python")}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or SHAPES:
            shape = SHAPES[name]
            path = without_weights(Path(folder) / "model.gguf", shape)
            for weighted in (False, True):
                label = f"{name}; weighted" if weighted else name
                chosen = {recipe: types(path, recipe, weighted) for recipe in RECIPES}
                actual[label] = {recipe: by_types(each) for recipe, each in chosen.items() if each}
                print(label)
    recorded.write("recipes", actual)


def without_weights(path: Path, shape: Shape) -> Path:
    """Write a sparse file whose weights are zeros: F16, or F32 if one-dimensional."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    for key, value in shape.metadata.items():
        add = {float: writer.add_float32, int: writer.add_uint32, tuple: writer.add_array}[type(value)]
        add(f"{shape.architecture}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    for name, dims in shape.tensors.items():
        writer.add_tensor_info(name, dims, np.dtype(type_of(dims)), n_bytes(dims))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(padded(path.stat().st_size) + sum(padded(n_bytes(dims)) for dims in shape.tensors.values()))
    return path


def type_of(dims: tuple[int, ...]) -> str:
    return "f2" if len(dims) > 1 else "f4"


def n_bytes(dims: tuple[int, ...]) -> int:
    return np.dtype(type_of(dims)).itemsize * math.prod(dims)


def padded(n: int) -> int:
    return -(-n // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT


def types(path: Path, recipe: str, weighted: bool) -> dict[str, str]:
    """Return the types by tensor name that a dry run logs; empty if llama.cpp does not support the row length or
    recipe.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.dry_run, params.nthread = RECIPES[recipe].number, True, 1
    matrices = (llama_cpp.llama_model_imatrix_data * 2)((b"of nothing", (ctypes.c_float * 1)(1.0), 1))
    if weighted:
        params.imatrix = matrices
    LOG.clear()
    if llama_cpp.llama_model_quantize(str(path).encode(), b"", params):
        if "no tensor type fallback" in LOG[-1] or "invalid output file type" in LOG[-1]:
            return {}
        sys.exit("".join(LOG))
    return dict(parsed("".join(LOG)))


def parsed(log: str) -> Iterator[tuple[str, str]]:
    """Parse lines like `[ 1/ 9] NAME - [SHAPE], type = f16, size = 2 MiB -> 1 MiB (q4_K)`; unchanged types lack the
    arrow.
    """
    for line in log.splitlines():
        if actual := re.search(r"\[ *\d+/ *\d+\] +(\S+) .*type = +(\w+), .*?(?:\((\w+)\))?$", line):
            name, old, new = actual.groups()
            yield name, (new or old).upper()


def by_types(types: dict[str, str]) -> dict[str, str]:
    """Return run-length encoded types by layer, for groups of tensors with equal types."""
    rows: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, kind in types.items():
        actual = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        rows[actual[2] if actual else name].append((int(actual[1]) if actual else 0, kind))
    names: dict[str, list[str]] = defaultdict(list)
    for name, row in sorted(rows.items()):
        names[run_lengths(kind for _, kind in sorted(row))].append(name.removesuffix(".weight"))
    return {kinds: " ".join(alike) for kinds, alike in names.items()}


def run_lengths(values: Iterable[str]) -> str:
    return " ".join(f"{value}*{len(list(group))}" for value, group in itertools.groupby(values))


if __name__ == "__main__":
    main()
