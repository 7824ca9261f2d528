"""A fixture of several tests of quantization."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli import __main__


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `quantize` in this process, in a new directory: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = __main__.run(["quantize", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run
