"""Programs that a model wrote: what passes, and what the limits prevent."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from localinfer.evaluation.tasks import sandbox

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "WALL_SECONDS", 3.0)


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("import math\nassert math.gcd(4, 6) == 2", True),
        ("text = 'größer'\nassert len(text) == 6", True),
        ("assert 1 == 2", False),
        ("def broken(:", False),
        ("raise SystemExit", False),
        ("import os\nos._exit(0)", False),
        ("import sys\nsys.exit(0)", False),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", False),
        ("print('a' * 1_000_000)\ninput_was = __import__('sys').stdin.read()\nassert input_was == ''", True),
        ("import localinfer", False),
    ],
)
def test_a_program_passes_if_it_runs_to_its_end(program: str, passes: bool) -> None:
    assert sandbox.passes(program) is passes


def test_an_endless_loop_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "WALL_SECONDS", 0.5)
    begin = time.monotonic()
    assert not sandbox.passes("while True: pass")
    assert not sandbox.passes("import time\ntime.sleep(100)")
    assert time.monotonic() - begin < 20


@linux_only
def test_processes_that_it_started_are_stopped(tmp_path: Path) -> None:
    """Also where they may be started, as by root."""
    marker = tmp_path / "alive"
    program = f"""
import os, time
if os.fork() == 0:
    time.sleep(1)
    open({str(marker)!r}, "w").close()
"""
    sandbox.passes(program)
    time.sleep(1.5)
    assert not marker.exists()


@linux_only
@pytest.mark.parametrize("program", ["text = 'a' * (1 << 31)", "open('big', 'wb').write(bytes(1 << 21))"])
def test_memory_and_files_are_limited(program: str) -> None:
    assert not sandbox.passes(program)


def test_it_sees_no_environment_and_an_empty_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "1")
    before = set(Path.cwd().iterdir())
    program = "import os\nassert 'A_SECRET' not in os.environ\nassert os.listdir('.') == []\nopen('a', 'w').write('b')"
    assert sandbox.passes(program)
    assert set(Path.cwd().iterdir()) == before


@linux_only
def test_it_has_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)"
        reached = sandbox.passes(program)
    if reached and os.geteuid() != 0:
        pytest.skip("this system does not let users make network namespaces")
    assert not reached
