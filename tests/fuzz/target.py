"""The fuzz target: opens a file, uses the model and closes it, with options and tokens at their limits.

Runs in a child process, with guard pages around every tensor and every region of the compute graph.
"""

import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from guard_pages import guarded_memory, is_intact

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.graph.ops.buffers import ALIGNMENT, Region
from localinfer.machine import resources
from localinfer.model import LoadedModel, Model
from localinfer.options import Layer, from_keywords, from_metadata, merge
from quant.jit import loader
from quant.jit.kernel import Kernel

AVAILABLE_MEMORY = resources.available_memory()
SIZES = 1, 1, 2, 3, 5, 7, 16, 31, 32, 33, 64, 100, 128, 300
TEXTS = "", "Hello", " the\n\n  and", "<|im_end|><eos>", "日本é\0\x1b", "\ud800x", "a" * 300


class KernelsNotCompiled(BaseException):
    """A compute graph needs kernels that this process has not loaded."""

    def __init__(self, kernels: list[Kernel]) -> None:
        super().__init__(f"{len(kernels)} kernels")
        self.kernels = kernels


def run_file(path: Path, model_options: Layer, choose: Random) -> str:
    """Run a file and return "" for success, else the error message. `model_options` belong to the seed model.

    Raises KernelsNotCompiled, and every exception that is not a LocalInferError.
    """
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", RuntimeWarning)  # numpy's warnings would be visible to users
    loader.load_cached = require_loaded  # type: ignore[assignment]
    Region.allocate = allocate_guarded  # type: ignore[method-assign]
    resources.available_memory = lambda: AVAILABLE_MEMORY  # measuring it takes as long as reading a model
    try:
        f = open_gguf(path)
        guard_tensors(f)
        options = merge(from_keywords(model_options | random_model_options(choose)), from_metadata(f.metadata, f.path))
        model = LoadedModel(f, options)
    except LocalInferError as refusal:
        return str(refusal)
    run_model(model, choose)
    if not all(is_intact(region.array) for region in model.engine.graph.regions if region.array is not None):
        raise AssertionError("a write before or after a region")
    return ""


def random_model_options(choose: Random) -> Layer:
    """Return random options of a model that do not affect which kernels are compiled."""
    return {
        "ctx_size": choose.choice((0, *SIZES)), "batch_size": choose.choice((*SIZES, 512)),
        "ctx_policy": choose.choice(("stop", "ring")), "keep": choose.choice((0, 1, 4, 40, 1000)),
        "threads": choose.choice((1, 1, 1, 2)), "threads_batch": choose.choice((0, 1, 2)),
    }  # fmt: skip


def run_model(model: Model, choose: Random) -> None:
    """Use all functions of a model. A LocalInferError is an acceptable result."""
    n = min(model.n_ctx, 60) + 2
    first = random_tokens(model, choose.randint(1, n), choose)
    second = random_tokens(model, choose.randint(1, n), choose)
    with suppress(LocalInferError):
        list(model.stream(first, **random_run_options(choose)))
    with suppress(LocalInferError):
        list(model.stream([*first[: choose.randint(0, len(first))], *second], **random_run_options(choose)))
    with suppress(LocalInferError):
        model.logits(second)
    with suppress(LocalInferError):
        text = "".join(choose.choices(TEXTS, k=3))
        model.detokenize(model.tokenize(text, parse_special=choose.random() < 0.5), special=choose.random() < 0.5)
    with suppress(LocalInferError):
        model.detokenize(first, special=True)
    model.close()


def random_tokens(model: Model, n: int, choose: Random) -> list[int]:
    """Return token ids, occasionally with an invalid one."""
    edges = (0, model.n_vocab - 1, choose.randrange(model.n_vocab))
    ids = choose.choices(edges, k=n)
    if choose.random() < 0.05:
        ids[choose.randrange(n)] = choose.choice((-1, model.n_vocab, 2**31, -(2**31), 2**63))
    return ids


def random_run_options(choose: Random) -> Layer:
    """Return random options of a generation."""
    return {
        "n_predict": choose.choice((0, 1, 2, 4, 10)), "temp": choose.choice((0.0, 0.8, 1e-6, 100.0)),
        "top_k": choose.choice((0, 1, 40)), "top_p": choose.choice((0.0, 0.9, 1.0)),
        "min_p": choose.choice((0.0, 0.1, 1.0)), "repeat_penalty": choose.choice((1.0, 1.5, 0.01)),
        "repeat_last_n": choose.choice((-1, 0, 64)), "seed": 1, "ignore_eos": choose.random() < 0.5,
    }  # fmt: skip


# --- replacements for functions of the program ---


def require_loaded(kernels: Iterable[Kernel], _: object) -> list[Kernel]:
    """Replacement for `loader.load_cached`, which returns the kernels to compile: nothing is compiled."""
    if missing := [kernel for kernel in kernels if kernel not in loader.LOADED_KERNELS]:
        raise KernelsNotCompiled(missing)
    return []


def allocate_guarded(region: Region) -> None:
    """Replacement for `Region.allocate`. Regions start at a cache line, as kernels expect."""
    region.array = guarded_memory(region.nbytes, ALIGNMENT)


def guard_tensors(f: GGUF) -> None:
    """Replace each memory-mapped tensor by a copy with guard pages."""
    for name, tensor in f.tensors.items():
        data = guarded_memory(len(tensor.data))
        data[:] = tensor.data
        data.flags.writeable = False
        f.tensors[name] = replace(tensor, data=data)
