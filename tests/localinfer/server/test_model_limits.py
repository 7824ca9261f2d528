"""Limits of a server with several models, its presets, and mistakes in its command line."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, wait_until
from tiny import tiny_llama, tiny_qwen3moe

from localinfer.options import Options
from localinfer.server.models.model_memory import required_bytes

TEXT = "/v1/completions"
REQUEST = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
PRESETS = """\
[*]
c = 512
sleep-idle-seconds = 0.5

[one]
alias = first,eins
--temp = 0
LLAMA_ARG_CTX_SIZE = 1024
load-on-startup = true

[own]
model = {folder}/two.gguf
sleep-idle-seconds = -1
parallel = 1
stop-timeout = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "two", "three")):
        tiny_llama(folder / f"{name}.gguf", seed=seed, n_ctx=4096)
    return folder


def models(server: ServerProcess) -> dict[str, Any]:
    return {each["id"]: each for each in server.get("/models").body["data"]}


def loaded(server: ServerProcess) -> list[str]:
    return sorted(name for name, each in models(server).items() if each["status"]["value"] == "loaded")


def ask(server: ServerProcess, name: str, **fields: object) -> Any:
    return server.post(TEXT, REQUEST | {"model": name} | fields)


def test_memory_budget(folder: Path) -> None:
    """There is room for two of three equal models; the least recently used one is unloaded."""
    needed = required_bytes(str(folder / "one.gguf"), {"ctx_size": 2048, "parallel": 4, "ubatch_size": 128})
    kib = int(2.5 * needed) >> 10
    flags = ("--models-max", 0, "--ctx-size", 2048, "--models-memory")
    with ServerProcess(folder, *flags, f"{kib}K") as server:
        for name in ("one", "two", "one", "three"):
            assert ask(server, name).status == 200
        assert loaded(server) == ["one", "three"]
    with ServerProcess(folder, *flags, f"{needed // 2048}K") as server:
        answer = ask(server, "one")
        assert (answer.status, answer.body["error"]["code"]) == (503, "not_enough_memory")
        assert "--models-memory allows" in answer.body["error"]["message"]
        assert models(server)["one"]["status"]["exit_code"] == 4


def test_required_memory_is_that_of_the_model(folder: Path) -> None:
    import localinfer

    options = {"ctx_size": 512, "parallel": 2}
    with localinfer.load(folder / "one.gguf", **options) as model:
        weights = sum(each.nbytes for each in model.file.tensors.values())
        assert required_bytes(str(folder / "one.gguf"), options) == weights + model.engine.graph.nbytes
    assert Options().ctx_size == 0


def test_required_memory_is_limited_by_the_memory_for_experts(tmp_path: Path) -> None:
    path = str(tiny_qwen3moe(tmp_path / "mixture.gguf"))
    assert required_bytes(path, {"memory": "3M"}) == 3_000_000
    assert 3_000_000 < required_bytes(path, {}) <= required_bytes(path, {"memory": "1G"}) < 40_000_000


def test_presets(folder: Path, tmp_path: Path) -> None:
    presets = tmp_path / "models.ini"
    presets.write_text(PRESETS.format(folder=folder))
    with ServerProcess(folder, "--models-preset", presets, "--models-max", 2) as server:
        assert wait_until(lambda: models(server)["one"]["status"]["value"] in ("loaded", "sleeping"), 60)
        assert models(server).keys() == {"one", "two", "three", "own"}
        assert models(server)["one"]["aliases"] == ["eins", "first"]
        assert ask(server, "eins").body["model"] == "one"
        assert server.get("/props?model=first").body["default_generation_settings"]["n_ctx"] == 1024
        assert wait_until(lambda: models(server)["one"]["status"]["value"] == "sleeping", 30)
        assert server.get("/props?model=one").body["is_sleeping"] is True
        assert server.post(f"{TEXT}?autoload=false", REQUEST | {"model": "one"}).status == 200  # it only sleeps
        assert ask(server, "own").status == 200
        with ThreadPoolExecutor(3) as threads:  # it has one sequence, and waits for turns
            assert [each.status for each in threads.map(lambda _: ask(server, "own", n=2), range(3))] == [200] * 3
        assert wait_until(lambda: loaded(server) == ["own"], 30)
        time.sleep(0.7)
        assert loaded(server) == ["own"]
        assert stop_in_time(server) < 20
        presets.write_text(PRESETS.format(folder=folder).replace("[own]", "[mine]"))
        ids = {each["id"] for each in server.get("/models?reload=1").body["data"]}
        assert ids == {"one", "two", "three", "mine"}
        presets.write_text("[mine]\nctx-sze = 3\n")
        answer = server.get("/models?reload=1")
        assert (answer.status, "no such option" in answer.body["error"]["message"]) == (400, True)
        assert models(server).keys() == ids


def stop_in_time(server: ServerProcess) -> float:
    """Return how long an endless answer goes on after its model is to be unloaded."""
    with server.open(TEXT, REQUEST | {"model": "own", "max_tokens": -1, "ignore_eos": True, "stream": True}) as answer:
        answer.readline()
        start = time.monotonic()
        assert server.post("/models/unload", {"model": "own"}).status == 200
        answer.read()
    return time.monotonic() - start


def test_without_autoload(folder: Path) -> None:
    with ServerProcess(folder, "--no-models-autoload") as server:
        assert ask(server, "one").status == 400
        assert server.get("/props").body["models_autoload"] is False
        server.post("/models/load", {"model": "one"})
        assert wait_until(lambda: loaded(server) == ["one"], 60)
        assert ask(server, "one").status == 200
        assert server.post(f"{TEXT}?autoload=true", REQUEST | {"model": "two"}).status == 200


def startup_error(*arguments: object) -> tuple[int, str]:
    """Return the exit code and the error line of a server that fails to start."""
    command = [sys.executable, "-m", "localinfer", "serve", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    [line] = done.stderr.splitlines()
    assert done.stdout == ""
    return done.returncode, line


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    twin = tiny_llama(tmp_path / "one.gguf")
    presets, clash = tmp_path / "wrong.ini", tmp_path / "clash.ini"
    presets.write_text("[one]\nctx-sze = 3\n")
    clash.write_text(f"[a]\nmodel = {twin}\nalias = two\n")
    startup = tmp_path / "startup.ini"
    startup.write_text("[*]\nload-on-startup = 1\n[one]\n[two]\n")
    for arguments, code, problem in (
        ((tmp_path / "missing",), 3, "missing: No such file or directory"),
        (("--models-dir", tmp_path / "missing"), 3, "missing: No such file or directory"),
        ((tmp_path / "empty",), 2, "empty: contains no GGUF file"),
        (("--models-dir", twin), 2, "one.gguf: is not a directory"),
        ((folder, "--models-preset", presets), 2, "[one]: --ctx-sze: no such option"),
        ((folder, twin), 2, "one: is the name of two models"),
        ((folder, "--models-preset", clash), 2, "two: is the name of two models"),
        ((folder, "--models-preset", startup), 2, "load-on-startup: 3 models are more than --models-max 1"),
        ((folder, "--models-memory", "much"), 2, "--models-memory: must be a size"),
        ((twin, "--models-memory", "1K"), 4, "--models-memory allows 0.00 GiB"),
        ((folder, "--alias", "a"), 2, "--alias: requires exactly one MODEL"),
    ):
        actual, line = startup_error(*arguments)
        assert (actual, problem in line) == (code, True), line
