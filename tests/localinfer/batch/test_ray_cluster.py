"""Batch jobs on a Ray cluster, including the death of a worker."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny import tiny_llama

from cli import __main__
from localinfer.batch.input_file import parse_requests
from localinfer.batch.job import Response
from localinfer.errors import LocalInferError

TIMEOUT_SECONDS = 300.0
SMALL: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
LINES = 40


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=4096)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two CPUs."""
    pytest.importorskip("ray.data", reason="there is no package ray[data]")
    from ray.cluster_utils import Cluster

    try:
        started = Cluster(initialize_head=True, head_node_args=SMALL)
    except Exception as error:
        pytest.skip(f"no cluster could be started: {error}")
    yield started.address
    started.shutdown()


def command(tiny: Path, prompts: Path, out: Path, address: str) -> list[str]:
    arguments = ["batch", tiny, prompts, "-o", out, "-t", "1", "-n", "100", "--ignore-eos", "--ray", address]
    return [sys.executable, "-m", "localinfer", *map(str, arguments), "--ray-workers", "2"]


def workers() -> list[psutil.Process]:
    """Return the actor processes of clusters that this process started."""
    return [each for each in psutil.Process().children(recursive=True) if "MapWorker" in name_of(each)]


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_worker_dies(cluster: str, tiny: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Hello {n}", "seed": n}) + "\n" for n in range(LINES)) + "[]\n")
    process = subprocess.Popen(
        command(tiny, prompts, out, cluster), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + TIMEOUT_SECONDS
    # One of the lines belongs to the invalid request.
    while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > 1):
        assert time.monotonic() < end
        time.sleep(0.01)
    victims = workers()
    os.kill(victims[0].pid, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1, stderr
    assert stdout == ""
    assert f"1 of {LINES + 1} requests failed, the first is line {LINES + 1}" in stderr
    actual = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [each["custom_id"] for each in actual] == [f"line-{n}" for n in range(1, LINES + 2)]
    assert [each["response"]["status_code"] for each in actual] == [200] * LINES + [400]
    assert len(victims) == 2
    same = command(tiny, prompts, out, cluster)[:-4]
    again = subprocess.run(same, env=environment, capture_output=True, text=True)  # without a cluster
    assert f"{LINES + 1} of {LINES + 1} are done" in again.stderr


def test_worker_with_a_different_file(cluster: str, tiny: Path) -> None:
    from localinfer.batch.ray_cluster import RayCluster
    from localinfer.options import Options

    requests = parse_requests(b'"a"', "in", "jsonl")
    with (
        RayCluster(cluster, str(tiny), Options(threads=1), "00000000", 1) as opened,
        pytest.raises(LocalInferError, match="differs between a worker and this machine"),
    ):
        list(opened.responses(requests))


class TestWithoutWorkers:
    """Handling of Ray's results, without a cluster."""

    @pytest.fixture
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        pytest.importorskip("ray.data", reason="there is no package ray[data]")
        from localinfer.batch.ray_cluster import RayCluster

        return RayCluster.__new__(RayCluster)

    def test_duplicate_response_counts_once(self, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        requests = parse_requests(b'"a"\n"b"\n', "in", "jsonl")
        rows = [{"number": number, "status": 200, "body": "{}"} for number in (2, 1, 2)]
        monkeypatch.setattr(opened, "_compute", lambda _: rows)
        assert list(opened.responses(requests)) == [Response(requests[1], 200, {}), Response(requests[0], 200, {})]

    def test_missing_response_is_an_error(self, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        requests = parse_requests(b'"a"\n"b"\n', "in", "jsonl")
        monkeypatch.setattr(opened, "_compute", lambda _: [{"number": 1, "status": 200, "body": "{}"}])
        with pytest.raises(LocalInferError, match="1 requests got no response"):
            list(opened.responses(requests))


def test_no_cluster_at_the_address(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray.data", reason="there is no package ray[data]")
    (tmp_path / "a.txt").write_text("a")
    arguments = ["batch", str(tiny), str(tmp_path / "a.txt"), "-o", str(tmp_path / "out.jsonl"), "--ray", "127.0.0.1:9"]
    assert __main__.run(arguments) == 1
    assert capsys.readouterr().err == "error: --ray 127.0.0.1:9: [Errno 111] Connection refused\n"


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from localinfer.batch import ray_cluster

    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    assert __main__.run(["batch", "m", "a.txt", "-o", "out.jsonl", "--ray", "auto"]) == 2
    expected = "error: --ray: ray and pyarrow not installed; run python -m pip install 'ray[data]'\n"
    assert capsys.readouterr().err == expected
