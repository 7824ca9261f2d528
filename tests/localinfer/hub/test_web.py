"""Downloads by URL, from servers that close connections, stall, send wrong data, reject requests or change files."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from locations import CHECKOUT
from loopback_hub import Fault, Hub
from split_files import split
from tiny import tiny_llama

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFoundError, UsageError
from localinfer.hub import download, resolve, web
from localinfer.hub.pull import pull
from localinfer.hub.resolve import NotDownloadedError


@pytest.fixture
def address(hub: Hub, model_bytes: bytes) -> str:
    hub.files["/dir/m.gguf"] = model_bytes
    return f"{hub.url}/dir/m.gguf"


def remaining_files() -> list[str]:
    """Return the files in the directory of web models, without the lock."""
    return sorted(each.name for each in web.web_directory().rglob("*") if each.is_file() and each.name != ".lock")


def requested_ranges(hub: Hub) -> list[str | None]:
    """Return the Range headers of the download requests, without the first metadata request."""
    return [each.headers.get("Range") for each in hub.requests_for("gguf")[1:]]


class TestDownload:
    def test_file_is_downloaded_once(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        with pytest.raises(NotDownloadedError, match=f"^{address}: not downloaded; run `localinfer pull {address}`"):
            resolve.find(address)
        path = pull(address)
        assert path.read_bytes() == model_bytes
        assert path.name == "m.gguf"
        assert remaining_files() == ["m.gguf", "url"]
        requests = len(hub.requests)
        assert resolve.find(address) == pull(address) == path
        assert len(hub.requests) == requests

    def test_progress_ends_with_the_size(self, address: str, model_bytes: bytes) -> None:
        observed: list[tuple[str, int, int]] = []
        pull(address, lambda *report: observed.append(report))
        assert {(stage, total) for stage, _, total in observed} == {("download", len(model_bytes))}
        assert [done for _, done, _ in observed] == sorted(done for _, done, _ in observed)
        assert observed[-1][1] == len(model_bytes)

    def test_split_model(self, hub: Hub, tmp_path: Path) -> None:
        parts = split(tiny_llama(tmp_path / "m.gguf"), 8)
        hub.files |= {f"/{part.name}": part.read_bytes() for part in parts}
        observed: list[tuple[str, int, int]] = []
        path = pull(f"{hub.url}/{parts[1].name}", lambda *report: observed.append(report))
        assert path.name == parts[0].name
        assert [(path.parent / part.name).read_bytes() for part in parts] == [part.read_bytes() for part in parts]
        assert resolve.find(f"{hub.url}/{parts[0].name}") == resolve.find(f"{hub.url}/{parts[2].name}") == path
        assert observed[-1][1:] == (sum(part.stat().st_size for part in parts),) * 2

    def test_list_and_removal(self, address: str, model_bytes: bytes) -> None:
        pull(address)
        [model] = web.list_models()
        assert (model.name, model.size, model.fraction) == (address, len(model_bytes), 1)
        resolve.plan_removal(address).delete()
        assert remaining_files() == []
        assert [each.name for each in web.web_directory().iterdir()] == [".lock"]
        with pytest.raises(NotDownloadedError):
            resolve.plan_removal(address)

    def test_query_is_part_of_the_url(self, hub: Hub, model_bytes: bytes) -> None:
        hub.files["/get"] = model_bytes
        one, other = pull(f"{hub.url}/get?id=1"), pull(f"{hub.url}/get?id=2")
        assert one.name == other.name == "model.gguf"
        assert one.parent != other.parent

    def test_digest_in_the_url(self, address: str, model_bytes: bytes) -> None:
        """A file that was downloaded without the digest has not been verified with it."""
        right = hashlib.sha256(model_bytes).hexdigest()
        pull(address)
        name = f"{address}#sha256={right.upper()}"
        with pytest.raises(NotDownloadedError):
            resolve.find(name)
        assert pull(name) == resolve.find(f"{address}#sha256={right}") != resolve.find(address)
        assert sorted(each.name for each in web.list_models()) == sorted([address, f"{address}#sha256={right}"])

    def test_wrong_digest_in_the_url(self, address: str, model_bytes: bytes) -> None:
        right = hashlib.sha256(model_bytes).hexdigest()
        with pytest.raises(LocalInferError, match=f"sha256 mismatch: expected {'0' * 64}, got {right}$"):
            pull(f"{address}#sha256={'0' * 64}")
        assert remaining_files() == []

    @pytest.mark.parametrize("fragment", ["sha256=abc", "md5=0", "x"])
    def test_invalid_digest(self, address: str, fragment: str) -> None:
        with pytest.raises(UsageError, match="the fragment must be sha256="):
            pull(f"{address}#{fragment}")

    def test_digest_from_response_header(self, hub: Hub, model_bytes: bytes) -> None:
        hub.repos["o/r"] = {"m.gguf": model_bytes}
        address = f"{hub.url}/o/r/resolve/main/m.gguf"
        hub.faults += [Fault(), Fault(body=bytes(len(model_bytes)))]
        with pytest.raises(LocalInferError, match="sha256 mismatch"):
            pull(address)
        assert pull(address).read_bytes() == model_bytes


class TestInterrupted:
    def test_download_is_resumed(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(n_bytes=100_000), Fault(n_bytes=300_000), Fault(n_bytes=0)]
        assert pull(address).read_bytes() == model_bytes
        assert requested_ranges(hub) == [None, "bytes=34464-", "bytes=268928-", "bytes=268928-"], "64 KiB again"

    def test_stalled_connection(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(n_bytes=100_000, stall=3)]
        assert pull(address).read_bytes() == model_bytes
        assert requested_ranges(hub) == [None, "bytes=34464-"]

    def test_repeated_interruptions(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        """The download fails after several retries without progress; the next pull resumes it."""
        hub.faults += [Fault(), Fault(n_bytes=100_000), *[Fault(n_bytes=0)] * 5]
        with pytest.raises(LocalInferError, match=f"^{address}: "):
            pull(address)
        assert remaining_files() == [".m.gguf.unfinished", ".m.gguf.unfinished.json"]
        with pytest.raises(NotDownloadedError):
            resolve.find(address)
        [model] = web.list_models()
        assert (model.name, model.size) == (address, len(model_bytes))
        assert 0 < model.fraction < 0.2
        hub.requests.clear()
        assert pull(address).read_bytes() == model_bytes
        assert requested_ranges(hub) == ["bytes=34464-"]
        assert remaining_files() == ["m.gguf", "url"]

    def test_unfinished_download_is_removed(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(), Fault(n_bytes=100_000), *[Fault(n_bytes=0)] * 20]  # more than it retries
        with pytest.raises(LocalInferError):
            pull(address)
        resolve.plan_removal(address).delete()
        assert remaining_files() == []

    def test_no_resume_without_digest_and_version(self, hub: Hub, address: str) -> None:
        hub.etags = False
        hub.faults += [Fault(), Fault(n_bytes=100_000), *[Fault(n_bytes=0)] * 20]  # more than it retries
        with pytest.raises(LocalInferError):
            pull(address)
        assert remaining_files() == []

    def test_file_that_changed_in_between(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(n_bytes=100_000), *[Fault(n_bytes=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(address)
        changed = model_bytes[:-32] + bytes(range(32))
        hub.files["/dir/m.gguf"] = changed
        assert pull(address).read_bytes() == changed

    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_busy_server(self, hub: Hub, address: str, model_bytes: bytes, status: int) -> None:
        hub.faults += [Fault(status=status), Fault(), Fault(n_bytes=100_000), Fault(status=status)]
        assert pull(address).read_bytes() == model_bytes

    def test_server_that_stays_busy(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(status=429)] * 3
        with pytest.raises(LocalInferError, match=r"127\.0\.0\.1 answers 429 Too Many Requests$"):
            pull(address)
        assert remaining_files() == []

    def test_retry_after(self, hub: Hub, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr(download, "time", SimpleNamespace(sleep=waits.append))
        hub.faults += [Fault(status=429, headers={"Retry-After": "7"})]
        pull(address)
        assert waits == [7]

    def test_retry_after_an_hour_is_an_error(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(status=503, headers={"Retry-After": "3600"})]
        with pytest.raises(LocalInferError, match="503"):
            pull(address)

    def test_no_server(self, hub: Hub) -> None:
        with pytest.raises(LocalInferError, match=r"127\.0\.0\.1:9/m\.gguf: .*refused"):
            pull("http://127.0.0.1:9/m.gguf")
        assert remaining_files() == []


class TestInvalidResponses:
    def test_ignored_range(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(n_bytes=100_000), Fault(ignore_range=True)]
        assert pull(address).read_bytes() == model_bytes

    @pytest.mark.parametrize("fault", [
        Fault(range_shift=1),
        Fault(headers={"Content-Range": "bytes 0-5/6"}),
        Fault(headers={"Content-Range": "nonsense"}),
    ])  # fmt: skip
    def test_wrong_range(self, hub: Hub, address: str, fault: Fault, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(n_bytes=100_000), fault]
        with pytest.raises(LocalInferError, match="sends a different file or range than announced"):
            pull(address)
        assert pull(address).read_bytes() == model_bytes

    def test_range_that_is_not_the_announced_one(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        n = len(model_bytes)
        lie = {"Content-Range": f"bytes 34464-{n - 1}/{n}"}
        hub.faults += [Fault(), Fault(n_bytes=100_000), Fault(range_shift=5000, headers=lie)]
        with pytest.raises(LocalInferError, match="sends a different file or range than announced"):
            pull(address)
        assert remaining_files() == []
        assert pull(address).read_bytes() == model_bytes

    def test_range_that_ends_early(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        lie = {"Content-Range": f"bytes 34464-200000/{len(model_bytes)}"}
        hub.faults += [Fault(), Fault(n_bytes=100_000), Fault(headers=lie)]
        with pytest.raises(LocalInferError, match="sends a different file or range than announced"):
            pull(address)

    def test_range_not_satisfiable(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(n_bytes=100_000), Fault(status=416)]
        assert pull(address).read_bytes() == model_bytes

    def test_more_than_announced(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(extra=b"x", with_length=False)]
        with pytest.raises(LocalInferError, match=f"sends more than the announced {len(model_bytes):,} bytes"):
            pull(address)

    def test_less_than_announced(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(body=model_bytes[:1000], with_length=False)]
        assert pull(address).read_bytes() == model_bytes

    def test_different_size(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(body=model_bytes[:1000])]
        with pytest.raises(LocalInferError, match="sends a different file or range"):
            pull(address)
        assert remaining_files() == []

    def test_truncated_file(self, hub: Hub, address: str) -> None:
        """A truncated file is not a valid model, although all announced bytes have been received."""
        hub.faults += [Fault(body=hub.files["/dir/m.gguf"][:-1000]), Fault(body=hub.files["/dir/m.gguf"][:-1000])]
        with pytest.raises(LocalInferError, match=r"does not send a GGUF file: blk.* bytes of data at offset"):
            pull(address)
        assert remaining_files() == []

    @pytest.mark.parametrize("length", ["0", "-1", "many", ""])
    def test_missing_size(self, hub: Hub, address: str, length: str) -> None:
        hub.faults += [Fault(headers={"Content-Length": length}, with_length=False)] * 3
        with pytest.raises(LocalInferError, match=f"^{address}: "):
            pull(address)
        assert remaining_files() == []

    def test_web_page(self, hub: Hub) -> None:
        hub.files["/m.gguf"] = b"<!doctype html><title>Please log in</title>"
        with pytest.raises(LocalInferError, match=r"does not send a GGUF file: magic: .* this is a web page"):
            pull(f"{hub.url}/m.gguf")
        assert remaining_files() == []

    def test_endless_redirect(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(status=302, headers={"Location": address})] * 30
        with pytest.raises(LocalInferError, match="redirects"):
            pull(address)


class TestRejected:
    @pytest.mark.parametrize("status", [401, 403, 404, 410])
    def test_refusal_statuses(self, hub: Hub, address: str, status: int) -> None:
        hub.faults += [Fault(status=status)]
        with pytest.raises(ModelNotFoundError, match=rf"^{address}: 127.0.0.1 .* \({status}\)$"):
            pull(address)
        assert remaining_files() == []

    @pytest.mark.parametrize("status", [400, 451, 505])
    def test_other_errors(self, hub: Hub, address: str, status: int) -> None:
        hub.faults += [Fault(status=status)]
        with pytest.raises(LocalInferError, match=f"^{address}: 127.0.0.1 answers {status} "):
            pull(address)

    @pytest.mark.parametrize(
        "name",
        ["https:", "https://", "https:///x.gguf", "https://u:p@host/x.gguf", "https://host:0x/y", "https://h /x", "http://[::1/x"],
    )
    def test_invalid_urls(self, name: str) -> None:
        with pytest.raises(UsageError, match="must be a URL such as"):
            resolve.find(name)

    @pytest.mark.parametrize("variable", ["LOCALINFER_OFFLINE", "HF_HUB_OFFLINE"])
    def test_offline(self, hub: Hub, address: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(variable, "1")
        with pytest.raises(ModelNotFoundError, match=f"not on this machine, and {variable} forbids"):
            pull(address)
        assert hub.requests == []
        monkeypatch.setenv(variable, "0")
        path = pull(address)
        monkeypatch.setenv(variable, "1")
        assert pull(address) == path


class TestFullDisk:
    def test_detected_before_the_download(self, hub: Hub, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 65 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(LocalInferError, match=f"{address} needs 65 MiB, 65 MiB are free"):
            pull(address)
        assert len(hub.requests) == 1
        assert remaining_files() == []

    def test_disk_fills_up_during_the_download(
        self, hub: Hub, address: str, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The received bytes remain until there is disk space again."""
        write = os.pwrite

        def full(file: int, data: bytes, offset: int) -> int:
            if offset > 500_000:
                raise OSError(28, "No space left on device")
            return write(file, data, offset)

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(LocalInferError, match="cannot be written: No space left on device"):
                pull(address)
        assert remaining_files() == [".m.gguf.unfinished", ".m.gguf.unfinished.json"]
        assert pull(address).read_bytes() == model_bytes
        assert requested_ranges(hub)[-1] is not None

    def test_file_in_place_of_the_directory(self, address: str) -> None:
        paths.private_directory(paths.models_dir())
        web.web_directory().write_text("not a directory")
        with pytest.raises(LocalInferError, match="web"):
            pull(address)


PULL = """
import sys
from localinfer.hub import download, pull
download.CHECKPOINT_BYTES = int(sys.argv[2])
pull.pull(sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
class TestKilled:
    def run_and_signal(self, hub: Hub, address: str, number: signal.Signals, keep: int = 1 << 18) -> bytes:
        """Return the stderr of a process that received a signal in the middle of a download."""
        hub.rate = 0.02
        search = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-c", PULL, address, str(keep)]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": search}, stderr=subprocess.PIPE)
        name = web.local_files(address)[0].with_name(".m.gguf.unfinished")
        deadline = time.monotonic() + 60
        while not name.exists() or name.stat().st_blocks * 512 < 700_000:
            assert process.poll() is None, "the pull ended before it began"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
        assert process.returncode != 0
        hub.rate = 0
        hub.requests.clear()
        with pytest.raises(NotDownloadedError):
            resolve.find(address)
        return error

    def test_interrupt_keeps_all_received_bytes(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        assert b"KeyboardInterrupt" in self.run_and_signal(hub, address, signal.SIGINT, keep=1 << 30)
        assert pull(address).read_bytes() == model_bytes
        [requested] = requested_ranges(hub)
        assert int(requested.removeprefix("bytes=").removesuffix("-")) >= 600_000

    def test_kill_keeps_checkpointed_bytes(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        self.run_and_signal(hub, address, signal.SIGKILL)
        assert pull(address).read_bytes() == model_bytes
        [requested] = requested_ranges(hub)
        assert int(requested.removeprefix("bytes=").removesuffix("-")) >= 1 << 18

    def test_kill_before_the_first_checkpoint(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        self.run_and_signal(hub, address, signal.SIGKILL, keep=1 << 30)
        assert pull(address).read_bytes() == model_bytes
        assert requested_ranges(hub) == [None]
        assert remaining_files() == ["m.gguf", "url"]


def test_concurrent_pulls(hub: Hub, address: str, model_bytes: bytes) -> None:
    hub.rate = 0.002
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        actual = pool.map(pull, [address] * 2)
    assert actual[0] == actual[1]
    assert actual[0].read_bytes() == model_bytes
    assert len(hub.requests_for("gguf")) == 2
