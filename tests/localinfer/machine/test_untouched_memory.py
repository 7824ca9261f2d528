"""Memory that is allocated and not touched yet is not available for anything else."""

import subprocess
import sys
from pathlib import Path

import pytest
from locations import CHECKOUT
from tiny import tiny_llama

MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the system does not say which pages are in memory")


TOUCHED = """
import gc
from localinfer.graph.ops.buffers import Region
from localinfer.machine.untouched_memory import untouched_bytes
MIB = 1 << 20
assert not untouched_bytes()
region = Region(64 * MIB)
region.allocate()
assert 60 * MIB < untouched_bytes() <= 64 * MIB
region.array[: 32 * MIB] = 1
assert 28 * MIB < untouched_bytes() <= 32 * MIB
region.array[:] = 1
assert not untouched_bytes()
other = Region(64 * MIB)
other.allocate()
assert untouched_bytes()
del other
gc.collect()
assert not untouched_bytes()
"""


TWO_MODELS = """
import gc, sys
from pathlib import Path
import pytest
from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.reader import open_gguf
from localinfer.machine import cgroups, resources
from localinfer.options import Options
from localinfer.runtime.engine import Engine
path, options = Path(sys.argv[1]), Options(threads=1, ctx_size=1 << 18, tune=False)
first = Engine.load(open_gguf(path), options)
limit = first.graph.nbytes * 3 // 2
assert limit > 64 << 20
cgroups.available_memory = lambda: limit
assert resources.available_memory() < first.graph.nbytes
with pytest.raises(NotEnoughMemoryError, match="GiB are available"):
    Engine.load(open_gguf(path), options)
first.close()
del first
gc.collect()
Engine.load(open_gguf(path), options).close()
"""


REUSED = """
import gc
import numpy as np
from localinfer.graph.ops.buffers import Region
from localinfer.machine.untouched_memory import untouched_bytes
MIB = 1 << 20
large = np.ones(31 * MIB, np.uint8)
del large  # from now on malloc takes arrays of up to 31 MiB from its heap
arrays = [np.ones(8 * MIB, np.uint8) for _ in range(12)]
last = np.ones(MIB, np.uint8)
del arrays  # malloc keeps them, because they are below `last`
gc.collect()
region = Region(64 * MIB)
region.allocate()
assert untouched_bytes() > 60 * MIB, untouched_bytes()
assert not region.array[::4096].any()
region.array[:] = 1
del region
gc.collect()
assert not untouched_bytes()
"""


def run_alone(program: str, *arguments: object) -> None:
    """Run a program in a process of its own, whose memory no other test has used. It must succeed."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_touched_pages_are_counted_by_the_system() -> None:
    run_alone(TOUCHED)


def test_memory_that_the_process_has_used_before_is_not_reused() -> None:
    """A process that has loaded and closed many models keeps a heap of pages that are in memory."""
    run_alone(REUSED)


def test_two_models_are_not_given_the_same_memory(tmp_path: Path) -> None:
    """The KV cache of the first model is almost empty, but the memory for it is reserved."""
    run_alone(TWO_MODELS, tiny_llama(tmp_path / "m.gguf", n_ctx=1 << 20))
