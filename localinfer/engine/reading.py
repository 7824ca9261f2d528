"""Where a model's bytes are while it runs: in its mapped file, or in memory of the process's own.

Only the first check is here, before any of it is read: `localinfer.files.in_memory` is imported by those who ask for
it.
"""

import gc

from localinfer.engine import machine
from localinfer.engine.program import record_within
from localinfer.errors import NotEnoughMemory
from localinfer.files.gguf import GGUF
from localinfer.options import Options
from quant.jit.loader import Progress


def as_asked(f: GGUF, options: Options, progress: Progress | None = None) -> GGUF:
    """The model as it is, mapped; or, where `options.mmap` is off, the same one read into memory, unless it is there
    already. Raises NotEnoughMemory before anything is read, and what `read_into_memory` raises."""
    if options.mmap or f.in_memory:
        return f
    from localinfer.files.in_memory import read_into_memory

    require_room(f, options)
    return read_into_memory(f, options.threads or machine.default_threads(), progress)


def require_room(f: GGUF, options: Options) -> None:
    """Raise NotEnoughMemory unless there is room for all of the file, and for what running it takes."""
    gc.collect()  # a model that was closed may be there yet
    available = machine.available_memory()
    recorder = record_within(available, f, options)
    if f.size + recorder.plan.nbytes > available:
        what = (
            f"{f.size / 2**30:.1f} GiB of weights and {recorder.plan.nbytes / 2**30:.1f} GiB for "
            f"{recorder.context.n_ctx} tokens are needed, {available / 2**30:.1f} GiB are available"
        )
        raise f.error("--no-mmap", f"{what}; --mmap reads what is needed of the file, when it is", NotEnoughMemory)
