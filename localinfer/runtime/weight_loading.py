"""Loading of weights: memory-mapped from the file, or read into the process's own memory.

Importing this module does not import `localinfer.gguf.in_memory`; only `--no-mmap` needs it.
"""

import gc

from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.reader import GGUF
from localinfer.options import Options
from localinfer.runtime import machine
from localinfer.runtime.compiled_graph import build_graph_within_memory
from quant.jit.loader import Progress


def load_weights(f: GGUF, options: Options, progress: Progress | None = None) -> GGUF:
    """Return the model memory-mapped as it is, or read into memory if `options.mmap` is off.

    Raises NotEnoughMemoryError before anything is read, and the errors of `read_into_memory`.
    """
    if options.mmap or f.in_memory:
        return f
    from localinfer.gguf.in_memory import read_into_memory

    require_memory_for_weights(f, options)
    return read_into_memory(f, options.threads or machine.default_threads(), progress)


def require_memory_for_weights(f: GGUF, options: Options) -> None:
    """Raise NotEnoughMemoryError unless the whole file and the memory for running it fit."""
    gc.collect()  # frees models that were closed
    available = machine.available_memory()
    builder = build_graph_within_memory(available, f, options)
    if f.size + builder.graph.nbytes > available:
        what = (
            f"{f.size / 2**30:.1f} GiB of weights and {builder.graph.nbytes / 2**30:.1f} GiB for "
            f"{builder.context.n_ctx} tokens are needed, {available / 2**30:.1f} GiB are available"
        )
        raise f.error("--no-mmap", f"{what}; --mmap reads what is needed of the file, when it is", NotEnoughMemoryError)
