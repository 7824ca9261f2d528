"""Loading of weights: memory-mapped from the file, or read into the process's own memory.

Importing this module imports neither `localinfer.gguf.in_memory` nor `localinfer.gguf.tensor_check`, which few runs
need.
"""

import gc
from collections.abc import Iterable

from localinfer.errors import NotEnoughMemoryError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.machine import resources
from localinfer.options import Options
from localinfer.runtime.graph_building import build_graph_within_memory
from quant.jit.loader import Progress

LIBRARY_BYTES = 192 << 20  # address space for LLVM and the tokenizer's libraries


def load_weights(f: GGUF, options: Options, progress: Progress | None = None) -> GGUF:
    """Return the model memory-mapped as it is, or read into memory if `options.mmap` is off.

    Raises NotEnoughMemoryError before anything is read, and the errors of `read_into_memory`.
    """
    if options.mmap or f.in_memory:
        return f
    from localinfer.gguf.in_memory import read_into_memory

    require_memory_for_weights(f, options)
    return read_into_memory(f, options.threads or resources.default_threads(), progress)


def check_weights(f: GGUF, options: Options, progress: Progress | None = None) -> None:
    """Read all weights if `options.check_tensors` is set. Raises LocalInferError for a value that is not finite."""
    if options.check_tensors:
        from localinfer.gguf.tensor_check import check_tensors

        check_tensors(f, options.threads or resources.default_threads(), progress)


def require_memory_for_weights(f: GGUF, options: Options) -> None:
    """Raise NotEnoughMemoryError unless the whole file and the memory for running it fit."""
    gc.collect()  # frees models that were closed
    available = resources.available_memory()
    model_graph = build_graph_within_memory(available, f, options)
    if f.size + model_graph.graph.nbytes > available:
        what = (
            f"{f.size / 2**30:.1f} GiB of weights and {model_graph.graph.nbytes / 2**30:.1f} GiB for "
            f"{model_graph.context.n_ctx} tokens are needed, {available / 2**30:.1f} GiB are available"
        )
        raise f.error("mmap", f"{what}; mmap=True (--mmap) reads only what is needed of the file", NotEnoughMemoryError)


def lock_in_memory(files: Iterable[GGUF]) -> list[str]:
    """Lock mapped model files in memory (`--mlock`). Return a message for each file that cannot be locked."""
    problems = {printable(str(each.path)): each.lock() for f in files for each in f.files}
    return [f"{path}: {problem}" for path, problem in problems.items() if problem]


def require_address_space(f: GGUF) -> None:
    """Raise NotEnoughMemoryError if the address space is too small for the libraries, one of which would abort the
    process."""
    available = resources.address_space()
    if available < LIBRARY_BYTES:
        what = f"needs {LIBRARY_BYTES >> 20} MiB of address space to load, {available >> 20} MiB are left (ulimit -v)"
        raise f.error("", what, NotEnoughMemoryError)
