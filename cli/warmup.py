"""`localinfer warmup`: everything that the first run of a model would have to wait for, done beforehand."""

import os
import time
from typing import Annotated

import typer

from cli import screen
from cli.flags import with_options
from cli.loading import default_model, fetched
from localinfer.errors import LocalInferError
from localinfer.options import Layer


@with_options("model")
def warmup_command(
    given: Layer,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Path of a GGUF file, or a name; none: the default one.")
    ] = None,
) -> None:
    """Compile the kernels that a model needs, so that its first run starts at once.

    They are kept, and depend on the model's architecture and types, on few of the options, and on this CPU: a
    second model often needs few others.

    \b
      localinfer warmup smollm2
      localinfer warmup model.gguf --precision high
    """
    model = model or default_model()
    status = screen.Status()
    path = fetched(model, status)

    from localinfer import paths
    from localinfer.engine.program import kernels
    from localinfer.files.gguf import open_gguf
    from localinfer.models import registry
    from localinfer.options import from_environment, merge
    from quant.jit import loader

    wanted = kernels(open_gguf(path), merge(given, from_environment(os.environ), registry.default_options(model)))
    compiled = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal compiled
        compiled = total
        status(stage, done, total)

    begin = time.perf_counter()
    _, warnings = loader.addresses(wanted, paths.jit_dir(), progress)
    if warnings:
        raise LocalInferError(f"{warnings[0]}, so nothing was kept")
    seconds = time.perf_counter() - begin
    done = f"{compiled} of {len(wanted)} kernels compiled in {seconds:.1f} s" if compiled else "all kernels were ready"
    screen.note(f"{screen.one_line(model)}: {done}")
