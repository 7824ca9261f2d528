"""Models by their address, from servers that break off, stall, lie, refuse, or change their mind."""

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
from loopback_hub import Fault, Hub
from places import CHECKOUT
from splits import split
from tiny import tiny_llama

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFound, UsageError
from localinfer.models import download, registry, web
from localinfer.models.fetch import pull
from localinfer.models.registry import NotFetched


@pytest.fixture
def address(hub: Hub, model_bytes: bytes) -> str:
    hub.files["/dir/m.gguf"] = model_bytes
    return f"{hub.url}/dir/m.gguf"


def left() -> list[str]:
    """What lies where models of the web are kept, but for the lock."""
    return sorted(each.name for each in web.root().rglob("*") if each.is_file() and each.name != ".lock")


def ranges(hub: Hub) -> list[str | None]:
    """What the requests for bytes asked for, but for the first, which only looks."""
    return [each.headers.get("Range") for each in hub.asked("gguf")[1:]]


class TestWhole:
    def test_is_fetched_once(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        with pytest.raises(NotFetched, match=f"^{address}: not fetched yet; `localinfer pull {address}`"):
            registry.find(address)
        path = pull(address)
        assert path.read_bytes() == model_bytes
        assert path.name == "m.gguf"
        assert left() == ["m.gguf", "url"]
        requests = len(hub.seen)
        assert registry.find(address) == pull(address) == path
        assert len(hub.seen) == requests

    def test_progress_ends_with_all_of_it(self, address: str, model_bytes: bytes) -> None:
        seen: list[tuple[str, int, int]] = []
        pull(address, lambda *report: seen.append(report))
        assert {(stage, total) for stage, _, total in seen} == {("download", len(model_bytes))}
        assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
        assert seen[-1][1] == len(model_bytes)

    def test_several_files(self, hub: Hub, tmp_path: Path) -> None:
        parts = split(tiny_llama(tmp_path / "m.gguf"), 8)
        hub.files |= {f"/{part.name}": part.read_bytes() for part in parts}
        seen: list[tuple[str, int, int]] = []
        path = pull(f"{hub.url}/{parts[1].name}", lambda *report: seen.append(report))
        assert path.name == parts[0].name
        assert [(path.parent / part.name).read_bytes() for part in parts] == [part.read_bytes() for part in parts]
        assert registry.find(f"{hub.url}/{parts[0].name}") == registry.find(f"{hub.url}/{parts[2].name}") == path
        assert seen[-1][1:] == (sum(part.stat().st_size for part in parts),) * 2

    def test_is_listed_and_removed(self, address: str, model_bytes: bytes) -> None:
        pull(address)
        [model] = web.listed()
        assert (model.name, model.size, model.share) == (address, len(model_bytes), 1)
        registry.removal(address).carry_out()
        assert left() == []
        assert [each.name for each in web.root().iterdir()] == [".lock"]
        with pytest.raises(NotFetched):
            registry.removal(address)

    def test_query_is_a_part_of_the_address(self, hub: Hub, model_bytes: bytes) -> None:
        hub.files["/get"] = model_bytes
        one, other = pull(f"{hub.url}/get?id=1"), pull(f"{hub.url}/get?id=2")
        assert one.name == other.name == "model.gguf"
        assert one.parent != other.parent

    def test_digest_in_the_address(self, address: str, model_bytes: bytes) -> None:
        """What was fetched without it was not proved by it."""
        right = hashlib.sha256(model_bytes).hexdigest()
        pull(address)
        name = f"{address}#sha256={right.upper()}"
        with pytest.raises(NotFetched):
            registry.find(name)
        assert pull(name) == registry.find(f"{address}#sha256={right}") != registry.find(address)
        assert sorted(each.name for each in web.listed()) == sorted([address, f"{address}#sha256={right}"])

    def test_wrong_digest_in_the_address(self, address: str, model_bytes: bytes) -> None:
        right = hashlib.sha256(model_bytes).hexdigest()
        with pytest.raises(LocalInferError, match=f"sha256 mismatch: expected {'0' * 64}, got {right}$"):
            pull(f"{address}#sha256={'0' * 64}")
        assert left() == []

    @pytest.mark.parametrize("fragment", ["sha256=abc", "md5=0", "x"])
    def test_what_is_no_digest(self, address: str, fragment: str) -> None:
        with pytest.raises(UsageError, match="behind # can only be sha256="):
            pull(f"{address}#{fragment}")

    def test_digest_that_a_hub_tells(self, hub: Hub, model_bytes: bytes) -> None:
        hub.repos["o/r"] = {"m.gguf": model_bytes}
        address = f"{hub.url}/o/r/resolve/main/m.gguf"
        hub.faults += [Fault(), Fault(body=bytes(len(model_bytes)))]
        with pytest.raises(LocalInferError, match="sha256 mismatch"):
            pull(address)
        assert pull(address).read_bytes() == model_bytes


class TestBrokenOff:
    def test_goes_on_where_it_was(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(cut=100_000), Fault(cut=300_000), Fault(cut=0)]
        assert pull(address).read_bytes() == model_bytes
        assert ranges(hub) == [None, "bytes=100000-", "bytes=400000-", "bytes=400000-"]

    def test_stalled(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(cut=100_000, stall=3)]
        assert pull(address).read_bytes() == model_bytes
        assert ranges(hub) == [None, "bytes=100000-"]

    def test_again_and_again(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        """It is given up when nothing comes any more; the next time goes on from there."""
        hub.faults += [Fault(), Fault(cut=100_000), *[Fault(cut=0)] * 5]
        with pytest.raises(LocalInferError, match=f"^{address}: "):
            pull(address)
        assert left() == [".m.gguf.unfinished", ".m.gguf.unfinished.json"]
        with pytest.raises(NotFetched):
            registry.find(address)
        [model] = web.listed()
        assert (model.name, model.size) == (address, len(model_bytes))
        assert 0 < model.share < 0.2
        hub.seen.clear()
        assert pull(address).read_bytes() == model_bytes
        assert ranges(hub) == ["bytes=100000-"]
        assert left() == ["m.gguf", "url"]

    def test_begun_is_removed(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(), Fault(cut=100_000), *[Fault(cut=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(address)
        registry.removal(address).carry_out()
        assert left() == []

    def test_without_a_word_of_what_it_is_nothing_is_gone_on_with_later(self, hub: Hub, address: str) -> None:
        hub.etags = False
        hub.faults += [Fault(), Fault(cut=100_000), *[Fault(cut=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(address)
        assert left() == []

    def test_file_that_changed_meanwhile(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(cut=100_000), *[Fault(cut=0)] * 5]
        with pytest.raises(LocalInferError):
            pull(address)
        changed = model_bytes[:-32] + bytes(range(32))
        hub.files["/dir/m.gguf"] = changed
        assert pull(address).read_bytes() == changed

    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_busy_server(self, hub: Hub, address: str, model_bytes: bytes, status: int) -> None:
        hub.faults += [Fault(status=status), Fault(), Fault(cut=100_000), Fault(status=status)]
        assert pull(address).read_bytes() == model_bytes

    def test_busy_for_ever(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(status=429)] * 3
        with pytest.raises(LocalInferError, match=r"127\.0\.0\.1 answers 429 Too Many Requests$"):
            pull(address)
        assert left() == []

    def test_server_that_asks_to_wait(self, hub: Hub, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr(download, "time", SimpleNamespace(sleep=waits.append))
        hub.faults += [Fault(status=429, headers={"Retry-After": "7"})]
        pull(address)
        assert waits == [7]

    def test_server_that_asks_to_wait_for_an_hour(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(status=503, headers={"Retry-After": "3600"})]
        with pytest.raises(LocalInferError, match="503"):
            pull(address)

    def test_nobody_there(self, hub: Hub) -> None:
        with pytest.raises(LocalInferError, match=r"127\.0\.0\.1:9/m\.gguf: .*refused"):
            pull("http://127.0.0.1:9/m.gguf")
        assert left() == []


class TestLies:
    def test_range_that_is_ignored(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(cut=100_000), Fault(ignore_range=True)]
        assert pull(address).read_bytes() == model_bytes

    @pytest.mark.parametrize("fault", [
        Fault(shift=1),
        Fault(headers={"Content-Range": "bytes 0-5/6"}),
        Fault(headers={"Content-Range": "nonsense"}),
    ])  # fmt: skip
    def test_another_range(self, hub: Hub, address: str, fault: Fault, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(cut=100_000), fault]
        with pytest.raises(LocalInferError, match="sends another file than was promised, or a wrong part"):
            pull(address)
        assert pull(address).read_bytes() == model_bytes

    def test_range_that_is_not_there(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(cut=100_000), Fault(status=416)]
        assert pull(address).read_bytes() == model_bytes

    def test_more_than_was_promised(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(after=b"x", length=False)]
        with pytest.raises(LocalInferError, match=f"sends more than the {len(model_bytes):,} bytes of it"):
            pull(address)

    def test_less_than_was_promised(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(body=model_bytes[:1000], length=False)]
        assert pull(address).read_bytes() == model_bytes

    def test_another_size(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        hub.faults += [Fault(), Fault(body=model_bytes[:1000])]
        with pytest.raises(LocalInferError, match="sends another file than was promised"):
            pull(address)
        assert left() == []

    def test_size_that_is_too_small(self, hub: Hub, address: str) -> None:
        """A file of which the end is missing is no model, though all that was promised has come."""
        hub.faults += [Fault(body=hub.files["/dir/m.gguf"][:-1000]), Fault(body=hub.files["/dir/m.gguf"][:-1000])]
        with pytest.raises(LocalInferError, match=r"what the server sends is no model: blk.* bytes of data at offset"):
            pull(address)
        assert left() == []

    @pytest.mark.parametrize("length", ["0", "-1", "many", ""])
    def test_no_size(self, hub: Hub, address: str, length: str) -> None:
        hub.faults += [Fault(headers={"Content-Length": length}, length=False)] * 3
        with pytest.raises(LocalInferError, match=f"^{address}: "):
            pull(address)
        assert left() == []

    def test_web_page(self, hub: Hub) -> None:
        hub.files["/m.gguf"] = b"<!doctype html><title>Please log in</title>"
        with pytest.raises(LocalInferError, match=r"is no model: magic: .* this is a web page"):
            pull(f"{hub.url}/m.gguf")
        assert left() == []

    def test_redirect_without_end(self, hub: Hub, address: str) -> None:
        hub.faults += [Fault(status=302, headers={"Location": address})] * 30
        with pytest.raises(LocalInferError, match="redirects"):
            pull(address)


class TestRefused:
    @pytest.mark.parametrize("status", [401, 403, 404, 410])
    def test_not_to_be_had(self, hub: Hub, address: str, status: int) -> None:
        hub.faults += [Fault(status=status)]
        with pytest.raises(ModelNotFound, match=rf"^{address}: 127.0.0.1 .* \({status}\)$"):
            pull(address)
        assert left() == []

    @pytest.mark.parametrize("status", [400, 451, 505])
    def test_other_trouble(self, hub: Hub, address: str, status: int) -> None:
        hub.faults += [Fault(status=status)]
        with pytest.raises(LocalInferError, match=f"^{address}: 127.0.0.1 answers {status} "):
            pull(address)

    @pytest.mark.parametrize(
        "name",
        ["https:", "https://", "https:///x.gguf", "https://u:p@host/x.gguf", "https://host:0x/y", "https://h /x", "http://[::1/x"],
    )
    def test_what_is_no_address(self, name: str) -> None:
        with pytest.raises(UsageError, match="must be an address such as"):
            registry.find(name)

    @pytest.mark.parametrize("variable", ["LOCALINFER_OFFLINE", "HF_HUB_OFFLINE"])
    def test_offline(self, hub: Hub, address: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(variable, "1")
        with pytest.raises(ModelNotFound, match=f"not on this machine, and {variable} says"):
            pull(address)
        assert hub.seen == []
        monkeypatch.setenv(variable, "0")
        path = pull(address)
        monkeypatch.setenv(variable, "1")
        assert pull(address) == path


class TestFullDisk:
    def test_is_noticed_first(self, hub: Hub, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 65 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(LocalInferError, match=f"{address} needs 65 MiB, 65 MiB are free"):
            pull(address)
        assert len(hub.seen) == 1
        assert left() == []

    def test_fills_up_meanwhile(
        self, hub: Hub, address: str, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What has come stays, for when there is room again."""
        write = os.pwrite

        def full(file: int, data: bytes, offset: int) -> int:
            if offset > 500_000:
                raise OSError(28, "No space left on device")
            return write(file, data, offset)

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(LocalInferError, match="cannot be written: No space left on device"):
                pull(address)
        assert left() == [".m.gguf.unfinished", ".m.gguf.unfinished.json"]
        assert pull(address).read_bytes() == model_bytes
        assert ranges(hub)[-1] is not None

    def test_file_in_place_of_the_directory(self, address: str) -> None:
        paths.private_directory(paths.models_dir())
        web.root().write_text("not a directory")
        with pytest.raises(LocalInferError, match="web"):
            pull(address)


PULL = """
import sys
from localinfer.models import download, fetch
download.KEEP = int(sys.argv[2])
fetch.pull(sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
class TestStopped:
    def stopped(self, hub: Hub, address: str, number: signal.Signals, keep: int = 1 << 18) -> bytes:
        """The error of a process that was told to stop in the middle of a download."""
        hub.rate = 0.02
        search = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-c", PULL, address, str(keep)]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": search}, stderr=subprocess.PIPE)
        name = web.files_of(address)[0].with_name(".m.gguf.unfinished")
        deadline = time.monotonic() + 60
        while not name.exists() or name.stat().st_blocks * 512 < 700_000:
            assert process.poll() is None, "the pull ended before it began"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
        assert process.returncode != 0
        hub.rate = 0
        hub.seen.clear()
        with pytest.raises(NotFetched):
            registry.find(address)
        return error

    def test_interrupt_keeps_all_that_has_come(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        assert b"KeyboardInterrupt" in self.stopped(hub, address, signal.SIGINT, keep=1 << 30)
        assert pull(address).read_bytes() == model_bytes
        [asked] = ranges(hub)
        assert int(asked.removeprefix("bytes=").removesuffix("-")) >= 600_000

    def test_killed_keeps_what_was_made_to_last(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        self.stopped(hub, address, signal.SIGKILL)
        assert pull(address).read_bytes() == model_bytes
        [asked] = ranges(hub)
        assert int(asked.removeprefix("bytes=").removesuffix("-")) >= 1 << 18

    def test_killed_before_anything_was_made_to_last(self, hub: Hub, address: str, model_bytes: bytes) -> None:
        self.stopped(hub, address, signal.SIGKILL, keep=1 << 30)
        assert pull(address).read_bytes() == model_bytes
        assert ranges(hub) == [None]
        assert left() == ["m.gguf", "url"]


def test_two_at_once(hub: Hub, address: str, model_bytes: bytes) -> None:
    hub.rate = 0.002
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(pull, [address] * 2)
    assert found[0] == found[1]
    assert found[0].read_bytes() == model_bytes
    assert len(hub.asked("gguf")) == 2
