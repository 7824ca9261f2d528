"""Fixtures of all tests: real models, the command line, and isolation from the user's directories."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from locations import CHECKOUT, FAKE_CLI
from terminal import Terminal

from localinfer import paths
from localinfer.errors import LocalInferError
from quant.jit import loader

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the reference implementation's matrices are small

# Processes that tests start use cached byte code, as an installed program does. Compiling the modules would take up to
# 0.1 s in each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test uses the real hub or the developer's model caches; tests that need a hub start a server of their own.
os.environ |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nonexistent/hf", "OLLAMA_MODELS": "/nonexistent"}

# Servers that several tests share are started before `isolated_directories` sets this.
os.environ["LOCALINFER_PREFIX_STORE"] = "0"

# A shell starts background processes with SIGINT ignored, and nohup with SIGHUP; child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Each process of pytest-xdist gets a contiguous part of the tests, so that the variants of a kernel are compiled in one
# process: the first process begins with models, the second one with kernels of formats. The last one has the tests that
# start programs, while other processes use the cores; it begins with those that take longest. A process that is done
# takes over the end of another part, where few tests compile kernels.
MODEL_TESTS = tuple(
    f"tests/localinfer/{name}"
    for name in (
        "architectures/", "runtime/", "kernels/", "graph/", "evaluation/", "quantization/", "lab/",
        "generation/speculative/", "test_model.py",
    )
)  # fmt: skip
KERNEL_TESTS, LONG_TESTS = "tests/quant/", ("test_arm64.py", "test_instruction_sets.py")
PROGRAM_TESTS = (
    *("tests/cli/", "tests/test_documented_commands.py", "tests/test_end_to_end.py", "tests/test_docs.py"),
    *(f"tests/localinfer/{name}/" for name in ("hub", "conversion", "chat_template", "gguf")),
)


def part_of(test: pytest.Item) -> int:
    """Return the number of the part of the tests that a test belongs to."""
    if test.nodeid.startswith(MODEL_TESTS):
        return 0
    if test.path.name.endswith(LONG_TESTS):
        return 3
    if test.nodeid.startswith(PROGRAM_TESTS):
        return 4
    return 2 if test.nodeid.startswith(KERNEL_TESTS) else 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes of `-n auto`: one more than cores, because some tests wait for programs."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: modules and tests stay, and there are more and more of them."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by part."""
    items.sort(key=part_of)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection, which would scan them again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """When tests have loaded eight kernels, exclude what numba keeps of those that it compiled from garbage collection.
    That is ten thousand objects a kernel.
    """
    if abs(len(loader.LOADED_KERNELS) - kernels_before[0]) >= 8:
        kernels_before[0] = len(loader.LOADED_KERNELS)
        gc.collect()
        gc.freeze()


kernels_before = [0]  # the kernels that were loaded when objects were last excluded


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process a contiguous part of the tests. A process that has finished its part takes over tests of
    another one.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


SHARED_CACHE = paths.cache_root()  # shared by all tests: downloaded models and compiled kernels
paths.private_directory(paths.jit_dir())  # programs whose cache has a link to it would not create it, and cache nothing


@pytest.fixture(scope="module")
def reference_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return the GGUF file of a reference model in F32, created once. All of them are deleted after the module."""
    import checkpoints
    import reference_models

    folder = tmp_path_factory.mktemp("models")

    def made(name: str) -> Path:
        path = folder / f"{name}.gguf"
        return path if path.exists() else checkpoints.as_f32(reference_models.checkpoint(name, folder), path)

    yield made
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def isolated_directories(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Isolate each test from the developer's configuration and sessions, and from what command lines of other tests set
    in this process (`--offline`); only the model and kernel cache is shared.
    """
    before = own_variables()
    for variable in before:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(SHARED_CACHE))
    monkeypatch.setenv("LOCALINFER_TUNE", "0")  # measuring real models while other tests run would be repeated
    monkeypatch.setenv("LOCALINFER_PREFIX_STORE", "0")  # tests of it have a directory of their own
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path_factory.getbasetemp() / "no-config"))
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path_factory.getbasetemp() / "data"))
    yield
    for variable in own_variables() - before:
        del os.environ[variable]


def own_variables() -> set[str]:
    """Return the names of the environment variables of localinfer that are set."""
    return {name for name in os.environ if name.startswith("LOCALINFER_")}


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct: llama, Q4_1 + Q8_0, byte-level BPE, chat template."""
    return real_model("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M base: gemma3, Q4_K_M, SentencePiece, sliding window, no chat template."""
    return real_model("gemma3-270m")


def real_model(name: str) -> Path:
    """Return the cached file, downloaded if necessary; skips the test if that fails."""
    from localinfer.hub import pull

    try:
        return pull.pull(name)
    except LocalInferError as error:
        pytest.skip(f"{name} could not be fetched: {error}")


@pytest.fixture
def environment() -> dict[str, str]:
    path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "TERM": "xterm"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command line in this process: exit code, stdout, stderr."""
    from cli import __main__

    def command(*arguments: object) -> tuple[int, str, str]:
        code = __main__.run([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return command


@pytest.fixture
def fake_model(tmp_path: Path) -> str:
    """The path of an empty file, which is enough for the fake model."""
    path = tmp_path / "fake.gguf"
    path.touch()
    return str(path)


@pytest.fixture
def fake_cli(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Return a function that runs the command line with the fake model; stdin is empty by default."""

    def run(
        *arguments: str, stdin: bytes | None = None, **changed: str
    ) -> subprocess.CompletedProcess[bytes]:
        where = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [*FAKE_CLI, *arguments], env=environment | changed, capture_output=True, timeout=30, **where)

    return run


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, columns: int = 80, **changed: str) -> Terminal:
        opened.append(Terminal([*FAKE_CLI, *arguments], environment | changed, columns))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()
