"""What is tried with a file: everything between opening it and closing the model, with options and tokens at edges.

Run in a process of its own, with a fence around every tensor and all of the plan's memory.
"""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from guard_pages import fenced, is_intact

from localinfer.errors import LocalInferError
from localinfer.files.gguf import GGUF, open_gguf
from localinfer.model import Model
from localinfer.options import Layer, from_keywords, from_metadata, merge
from localinfer.plan.buffers import ALIGNMENT, Region
from quant.jit import loader
from quant.jit.kernel import Kernel

SIZES = 1, 1, 2, 3, 5, 7, 16, 31, 32, 33, 64, 100, 128, 300
TEXTS = "", "Hello", " the\n\n  and", "<|im_end|><eos>", "日本é\0\x1b", "\ud800x", "a" * 300


class NotCompiled(BaseException):
    """A plan wants kernels that this process does not have."""

    def __init__(self, kernels: list[Kernel]) -> None:
        super().__init__(f"{len(kernels)} kernels")
        self.kernels = kernels


def try_file(path: Path, own: Layer, choose: Random) -> str:
    """How far it went: "" where all was done, else the error; `own` are options that go with the file.

    Raises NotCompiled, and whatever is not a LocalInferError.
    """
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", RuntimeWarning)  # numpy's, which a user would see
    loader.addresses = of_known  # type: ignore[assignment]
    Region.allocate = allocate_fenced  # type: ignore[method-assign]
    try:
        f = open_gguf(path)
        fence_tensors(f)
        options = merge(from_keywords(own | any_options(choose)), from_metadata(f.metadata, f.path))
        model = Model(f, options)
    except LocalInferError as refusal:
        return str(refusal)
    exercise(model, choose)
    if not all(is_intact(region.array) for region in model.engine.plan.regions if region.array is not None):
        raise AssertionError("something was written in front of a region or behind it")
    return ""


def any_options(choose: Random) -> Layer:
    """Options of a model that no kernel is compiled for."""
    return {
        "ctx_size": choose.choice((0, *SIZES)), "batch_size": choose.choice((*SIZES, 512)),
        "ctx_policy": choose.choice(("stop", "ring")), "keep": choose.choice((0, 1, 4, 40, 1000)),
        "threads": choose.choice((1, 1, 1, 2)), "threads_batch": choose.choice((0, 1, 2)),
    }  # fmt: skip


def exercise(model: Model, choose: Random) -> None:
    """Everything that a model can be asked for. What it refuses is as good as what it does."""
    n = min(model.n_ctx, 60) + 2
    first, second = tokens(model, choose.randint(1, n), choose), tokens(model, choose.randint(1, n), choose)
    with suppress(LocalInferError):
        list(model.generate(first, **any_run(choose)))
    with suppress(LocalInferError):
        list(model.generate([*first[: choose.randint(0, len(first))], *second], **any_run(choose)))
    with suppress(LocalInferError):
        model.logits(second)
    with suppress(LocalInferError):
        text = "".join(choose.choices(TEXTS, k=3))
        model.detokenize(model.tokenize(text, parse_special=choose.random() < 0.5), special=choose.random() < 0.5)
    with suppress(LocalInferError):
        model.detokenize(first, special=True)
    model.close()


def tokens(model: Model, n: int, choose: Random) -> list[int]:
    """Token ids, now and then one that there is not."""
    edges = (0, model.n_vocab - 1, choose.randrange(model.n_vocab))
    ids = choose.choices(edges, k=n)
    if choose.random() < 0.05:
        ids[choose.randrange(n)] = choose.choice((-1, model.n_vocab, 2**31, -(2**31), 2**63))
    return ids


def any_run(choose: Random) -> Layer:
    """Options of a run."""
    return {
        "n_predict": choose.choice((0, 1, 2, 4, 10)), "temp": choose.choice((0.0, 0.8, 1e-6, 100.0)),
        "top_k": choose.choice((0, 1, 40)), "top_p": choose.choice((0.0, 0.9, 1.0)),
        "min_p": choose.choice((0.0, 0.1, 1.0)), "repeat_penalty": choose.choice((1.0, 1.5, 0.01)),
        "repeat_last_n": choose.choice((-1, 0, 64)), "seed": 1, "ignore_eos": choose.random() < 0.5,
    }  # fmt: skip


# --- what takes the place of the program's own ---


def of_known(kernels: Iterable[Kernel], *_: object) -> tuple[Mapping[Kernel, int], list[str]]:
    """As `loader.addresses`, without a compiler."""
    wanted = list(dict.fromkeys(kernels))
    if missing := [kernel for kernel in wanted if kernel not in loader.ADDRESSES]:
        raise NotCompiled(missing)
    return {kernel: loader.ADDRESSES[kernel] for kernel in wanted}, []


def allocate_fenced(region: Region) -> None:
    """As `Region.allocate`. Regions begin at a cache line, as kernels are promised."""
    region.array = fenced(region.nbytes, ALIGNMENT)


def fence_tensors(f: GGUF) -> None:
    """Put a copy of each tensor in the place of the one in the file's map, which has neighbours."""
    for name, tensor in f.tensors.items():
        data = fenced(len(tensor.data))
        data[:] = tensor.data
        data.flags.writeable = False
        f.tensors[name] = replace(tensor, data=data)
