"""The command `localinfer warmup`: compile the kernels of a model ahead of time."""

import os
import time

from cli.arguments.flags import OptionalModelArgument, with_options
from cli.models.loading import default_model, find_or_fetch
from cli.terminal import screen
from localinfer.errors import LocalInferError
from localinfer.options import Layer


@with_options("model", "adapters")
def warmup_command(
    given: Layer,
    model: OptionalModelArgument = None,
) -> None:
    """Compile the kernels of a model ahead of its first run.

    Compiled kernels are cached. They depend on the architecture and tensor types of the model, on a few options and
    on the CPU, so a second model often shares most of them.

    \b
    Examples:
      localinfer warmup smollm2
      localinfer warmup model.gguf --precision high
    """
    model = model or default_model()
    status = screen.Status()
    path = find_or_fetch(model, status)

    from localinfer import paths
    from localinfer.adapters import open_adapters
    from localinfer.gguf.overrides import open_overridden
    from localinfer.hub import resolve
    from localinfer.options import from_environment, merge
    from localinfer.runtime.graph_building import Extensions
    from localinfer.runtime.requirements import required_kernels
    from quant.jit import loader

    options = merge(given, from_environment(os.environ), resolve.default_options(model))
    f = open_overridden(path, options)
    wanted = required_kernels(f, options, Extensions(adapters=open_adapters(f, options)))
    compiled = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal compiled
        compiled = total
        status(stage, done, total)

    begin = time.perf_counter()
    _, warnings = loader.load_kernels(wanted, paths.jit_dir(), progress)
    if warnings:
        raise LocalInferError(f"{warnings[0]}, so no kernel was cached")
    seconds = time.perf_counter() - begin
    done = f"{compiled} of {len(wanted)} kernels compiled in {seconds:.1f} s" if compiled else "all kernels are cached"
    screen.note(f"{screen.one_line(model)}: {done}")
