"""Command lines as on Windows, simulated: see `windows_simulation`. All of them run in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from locations import CHECKOUT, PYTHONPATH
from tiny import tiny_llama

from localinfer import sessions

TEMPLATE = {"tokenizer.chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"}
REQUEST = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}) + "\n"


class Expected(NamedTuple):
    """A command line, with MODEL, FOLDER and stdin filled in, and what it must print: stderr, if the code is not 0.

    ANSWER stands for what the first `generate` prints.
    """

    command: str
    text: str
    code: int = 0
    stdin: str = ""


COMMANDS = [
    Expected("--help", "Usage: localinfer"),
    Expected("doctor", "models can run on this machine"),
    Expected("config MODEL", "--ctx-size"),
    Expected("inspect MODEL", "GGUF version 3"),
    Expected("tokenize MODEL", "'a'", stdin="a\r\n"),
    Expected("generate MODEL -p Hi -n 4 --temp 0 --prompt-cache FOLDER/prompt", ""),
    Expected("generate MODEL -p Hi -n 4 --temp 0 --prompt-cache FOLDER/prompt", "", stdin="more"),  # replaces the file
    Expected("generate MODEL -p Hi -n 4 --temp 0 --no-mmap", "ANSWER"),
    Expected("chat MODEL -n 4 -c 128 --temp 0", "", stdin="Hello"),
    Expected("generate MODEL -p Hi -n 900 -c 64 --ignore-eos --temp 0", "context", code=5),
    Expected("generate MODEL -p x -n 1 --json-schema {", "--json-schema", code=6),
    Expected("generate FOLDER/none.gguf -p x", "No such file", code=3),
    Expected("quantize MODEL FOLDER/q.gguf Q4_0 --allow-requantize", ""),
    Expected("quantize MODEL FOLDER/q.gguf Q4_0 --allow-requantize", "is there already", code=2),
    Expected("quantize MODEL FOLDER/q.gguf Q4_0 --allow-requantize --force", ""),
    Expected("inspect FOLDER/q.gguf", "Q4_0"),
    Expected("batch MODEL FOLDER/in.jsonl -o FOLDER/out.jsonl", ""),
    Expected("batch MODEL FOLDER/in.jsonl -o FOLDER/out.jsonl", ""),  # continues
    Expected("sessions", "mine  smollm2  1 messages  Hello"),
    Expected("sessions show mine", "> Hello"),
    Expected("sessions rm mine --yes", ""),
    Expected("sessions show mine", "no such session", code=2),
    Expected("serve MODEL --host FOLDER/s.sock", "no Unix sockets", code=1),
]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_commands(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path / "data"))
    sessions.create("smollm2", "mine").append({"role": "user", "content": "Hello"})
    model = tiny_llama(tmp_path / "tiny.gguf", n_layer=1, **TEMPLATE)
    (tmp_path / "in.jsonl").write_text(2 * REQUEST)
    filled_in = [each.command.replace("MODEL", str(model)).replace("FOLDER", str(tmp_path)) for each in COMMANDS]
    lines = [[command.split(), each.stdin] for command, each in zip(filled_in, COMMANDS, strict=True)]
    where = {"LOCALINFER_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": os.pathsep.join(PYTHONPATH)}
    command = [sys.executable, str(CHECKOUT / "tests" / "harness" / "windows_simulation.py"), json.dumps(lines)]
    done = subprocess.run(command, env=environment | where, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    answer = results[next(n for n, each in enumerate(COMMANDS) if each.command.startswith("generate"))][1]
    assert answer.strip()
    for expected, (code, out, err) in zip(COMMANDS, results, strict=True):
        assert code == expected.code, f"{expected.command}: {err}"
        text = expected.text.replace("ANSWER", answer)
        assert text in (err if code else out), f"{expected.command}: {out}{err}"
        assert out or code or expected.command.split()[0] not in ("chat", "generate"), expected.command
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data", "in.jsonl", "out.jsonl", "prompt", "q.gguf", "tiny.gguf"
    ]  # fmt: skip
