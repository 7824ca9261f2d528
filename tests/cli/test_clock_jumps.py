"""A clock that is wrong, jumps or runs fast: sessions, timeouts and idle models do not depend on it."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wrong_clock
from server_process import ServerProcess
from tiny import tiny_llama

YEAR = 365 * 86400
CLOCKS = [(0, 1), (30 * YEAR, 1), (1.7e9, 100_000), (2**31 - 2, 1), (4.3e9, 10), (86400, 1)]  # start, rate

pytestmark = pytest.mark.skipif(not wrong_clock.is_available(), reason="there is no C compiler, or no Linux")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wrong_clock.build(tmp_path_factory.mktemp("clock"))


def test_the_clock_of_these_tests_is_wrong(library: Path) -> None:
    code = "import time, datetime as d; print(time.time(), d.datetime.now(d.UTC).year, time.monotonic())"
    changed = wrong_clock.environment(library, 4.3e9, 1000)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | changed, capture_output=True, text=True, check=True)
    actual, year, monotonic = done.stdout.split()
    assert 4.3e9 < float(actual) < 4.4e9
    assert year == "2106"
    assert abs(float(monotonic) - time.monotonic()) < 60


CONTINUE = """
import sys
from localinfer import sessions
name = sys.argv[1]
session = sessions.open_session(name) if name in sessions.list_names() else sessions.create("m", name)
session.append({"role": "user", "content": "Hello"})
print(sessions.create("m").name)
"""


def test_sessions(environment: dict[str, str], library: Path, tmp_path: Path) -> None:
    """One session is continued, and listed among others, after each jump."""

    def run(clock: tuple[float, float], *arguments: str) -> str:
        changed = environment | {"LOCALINFER_DATA_DIR": str(tmp_path)} | wrong_clock.environment(library, *clock)
        done = subprocess.run([sys.executable, *arguments], env=changed, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    names = ["long"]
    for number, clock in enumerate(CLOCKS):
        run(clock, "-c", CONTINUE, "long")
        unnamed = run(clock, "-c", CONTINUE, f"short{number}").strip()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", unnamed)
        names.append(f"short{number}")
        listed = json.loads(run(CLOCKS[-1 - number], "-m", "localinfer", "sessions", "--json"))
        assert sorted(each["name"] for each in listed) == names
    shown = json.loads(run(CLOCKS[0], "-m", "localinfer", "sessions", "show", "long", "--json"))
    assert str(shown).count("Hello") >= len(CLOCKS)


@pytest.mark.parametrize(("start", "rate"), [(1.7e9, 100_000), (0, 10)])
def test_timeouts_and_idle_models(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: float, rate: float
) -> None:
    """Each second of the first clock is more than a day."""
    pytest.importorskip("uvicorn")
    model = tiny_llama(tmp_path / "m.gguf", n_ctx=2048)
    changed = wrong_clock.environment(library, start, rate)
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    body = {"model": "m", "prompt": "Hello", "stream": False, "options": {"num_predict": 500}}
    with ServerProcess(model, "--timeout", 600) as server:
        for name in changed:
            monkeypatch.delenv(name)
        for _ in range(2):
            answer = server.post("/api/generate", body | {"keep_alive": "10m"})
            assert answer.status == 200, answer.body
            assert answer.body["eval_count"] > 100 or answer.body["done_reason"] == "stop"
            assert 0 <= answer.body["total_duration"] < 600e9
            assert [each["name"] for each in server.get("/api/ps").body["models"]] == ["m"]
        server.post("/api/generate", body | {"keep_alive": 0})
        assert server.get("/api/ps").body["models"] == []
