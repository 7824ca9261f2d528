"""Command lines of llama.cpp's tools and of Ollama run to their end, on tiny models (see `tool_inputs`).

The lines are a sample of the documentation of both (`make_peer_command_lines.py`). A line passes if its exit code is 0
and it has done what it asks for: the answer, the file, the measurements. A server must answer, and end when it is told
to. Lines in REFUSED end with an error that says what is not supported. Those about images, audio and speech, whose
files are missing, and about accounts and other programs of Ollama, are counted by themselves, and end with an error.
"""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import gguf
import pytest
from answering_model import ANSWER
from huggingface_hub import constants
from locations import DATA
from loopback_hub import Hub
from server_process import ServerProcess
from tool_inputs import ToolInputs

from cli import __main__
from cli.server import serve
from cli.terminal import screen
from localinfer import paths
from localinfer.server import run

PARTS = (DATA / "peer_command_lines.txt").read_text().split("\n# --- ")[1:]
LINES = {part.partition(" ---")[0]: [*filter(None, part.splitlines()[1:])] for part in PARTS}
MEDIA, ACCOUNTS = LINES["images, audio and speech"], LINES["accounts and other programs of Ollama"]
TESTED = LINES["llama.cpp"] + LINES["Ollama"]
REFUSED = {  # part of a command line: part of the error
    "--control-vector-layer-range 10 31": "has no layer of the model",  # which has fewer here
    "--bigendian": "little-endian",
    "--mcp-servers-config": "calls no tools itself",
    "--reasoning-parser": "no such option",  # nor has Ollama
    "ollama create -f Modelfile": "Missing argument 'NAME'",  # also in Ollama
}
MEASUREMENTS = {"csv": "avg_ts", "json": "avg_ts", "jsonl": "avg_ts", "sql": "INSERT INTO", "md": "t/s"}
KERNELS = paths.jit_dir()
SECONDS = 60  # kernels may have to be compiled
INTERRUPTED = 130


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


class Runner:
    """Runs command lines in this process, in a folder that has what they name."""

    def __init__(self, inputs: ToolInputs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.inputs = inputs
        self.monkeypatch = monkeypatch
        self.capsys = capsys
        self.answers: list[object] = []  # of a server

    def run(self, words: list[str], stdin: str = "Hi\n") -> tuple[int, str, str]:
        """Run a command line and return its exit code, stdout and stderr."""
        (self.inputs.work / "stdin").write_text(stdin)
        with (self.inputs.work / "stdin").open() as file:
            self.monkeypatch.setattr(sys, "stdin", file)
            code = __main__.run(words)
        return (code, *self.capsys.readouterr())

    def serve(self, words: list[str]) -> tuple[int, str, str]:
        """Run a server until it has answered, then interrupt it."""
        self.monkeypatch.setattr(run, "EXIT_SECONDS", 3600.0)  # after that, the server would end this process
        self.monkeypatch.setattr(serve, "print_address", lambda _, port: self.start(self.request, port))
        return self.run([*words, "--port", "0"])

    def interrupt_after(self, text: str) -> None:
        """Interrupt the command line when it has written this text."""
        written = ""

        def write(piece: str) -> None:
            nonlocal written
            sys.stdout.write(piece)
            written += piece
            if text in written:
                raise KeyboardInterrupt

        self.monkeypatch.setattr(screen, "write", write)

    def start(self, function: object, *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def request(self, port: int) -> None:
        """Request what every server has, then stop this one."""
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}).encode()
        try:
            wait_until_loaded(port)
            for path, data in ("/health", None), ("/v1/chat/completions", body):
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
                with urllib.request.urlopen(request, timeout=SECONDS) as response:
                    self.answers.append(json.load(response))
        finally:
            os.kill(os.getpid(), signal.SIGINT)


def wait_until_loaded(port: int) -> None:
    """Wait until the server has loaded its model. It answers with status 503 until then."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
            return
        time.sleep(0.02)


@pytest.fixture
def runner(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runner:
    for name in ("config", "data", "cache"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"LOCALINFER_{name.upper()}_DIR", str(tmp_path / name))
    (tmp_path / "cache" / "jit").symlink_to(KERNELS)
    work = tmp_path / "work" / "here"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setenv("LOCALINFER_SEED", "1")
    registry = tmp_path / "config" / "models.toml"
    registry.write_text(f'default = "tiny"\n[models.tiny]\npath = "{work}/tiny.gguf"\n')
    inputs = ToolInputs(work, hub, registry)
    inputs.put("answering", "tiny.gguf")
    return Runner(inputs, monkeypatch, capsys)


def test_numbers() -> None:
    assert len(set(TESTED)) == 150
    assert sum(any(part in line for part in REFUSED) for line in TESTED) <= 5
    assert len(MEDIA) == len(ACCOUNTS) == 10


@pytest.mark.parametrize("line", TESTED)
def test_line(line: str, runner: Runner) -> None:
    words = runner.inputs.prepare(shlex.split(line))
    error = next((error for part, error in REFUSED.items() if part in line), "")
    if error and words[0] == "llama-server":  # it starts in any case, with a warning
        code, _, err = runner.serve(words)
        assert code == 0, err
        assert error in err
    elif error:
        code, _, err = runner.run(words)
        assert code in (2, 3), err
        assert error in err
    elif words[0] == "ollama":
        check_ollama(words, runner)
    elif is_server(words):
        check_server(words, runner)
    else:
        check_tool(words, runner)


@pytest.mark.parametrize("line", MEDIA + ACCOUNTS)
def test_line_of_another_class(line: str, runner: Runner) -> None:
    """Speech, accounts and other programs are not supported; projectors and images are, but these are missing. The
    error says so.
    """
    words = runner.inputs.prepare(shlex.split(line))
    if is_server(words):
        code, _, err = runner.serve(words)
        assert code in (0, 3), err
    else:
        code, _, err = runner.run(words)
        assert code in (2, 3), err
    missing = "No such file|neither a file nor a known model|no question"
    assert re.search(f"images|speech|no account|upload|serve|{missing}", err), err


def is_server(words: list[str]) -> bool:
    program = words[0] == "llama-server" or words[:2] in (["llama", "serve"], ["ollama", "serve"])
    return program and not {"--help", "--list-devices"} & {*words}


def check_server(words: list[str], runner: Runner) -> None:
    code, _, err = runner.serve(words)
    assert code == 0, err
    health, chat = runner.answers
    assert health == {"status": "ok"}
    assert isinstance(chat, dict)
    has_head = "eagle3" in str(words) or {"draft-dflash", "draft-dspark"} & {*words}  # whose model has random weights
    assert has_head or ANSWER in chat["choices"][0]["message"]["content"]


def check_tool(words: list[str], runner: Runner) -> None:
    is_endless = "--ignore-eos" in words
    if is_endless:
        runner.interrupt_after(ANSWER * 3)
    measured = words[0] == "llama-bench" and "--list-devices" not in words
    stdin = "" if {"-p", "--prompt"} & {*words} else "Hi\n"
    code, out, err = runner.run([*words, "-r", "1"] if measured else words, stdin)  # by default, 5 repetitions
    assert code == (INTERRUPTED if is_endless else 0), err
    tool = words[0].removeprefix("llama-")
    if {"--list-devices", "--completion-bash"} & {*words}:
        assert "localinfer" in out
    elif tool in ("quantize", "convert_hf_to_gguf.py"):
        check_model_file(words, runner.inputs.outputs[0])
    elif tool == "export-lora":
        types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(runner.inputs.outputs[0]).tensors}
        assert (types["blk.0.attn_q.weight"], types["blk.0.attn_k.weight"]) == ("F16", "Q8_0")
    elif tool == "imatrix":
        check_imatrix(words, out, runner)
    elif tool in ("bench", "batched-bench"):
        check_measurements(words, out)
    elif tool == "perplexity":
        assert re.match(r"PPL = \d", out)
    elif tool == "retrieval":
        assert len(out.splitlines()) == int(words[words.index("--top-k") + 1])
    elif tool == "embedding":
        expected = 4 if "#sep#" in str(words) else 1
        assert [json.loads(each)["index"] for each in out.splitlines()] == [*range(expected)]
    else:
        assert ANSWER in out, err


def check_model_file(words: list[str], path: Path) -> None:
    """Check that a model was written with the type that the command line asks for, and without pruned layers."""
    [path] = [path] if path.is_file() else path.glob("*.gguf")
    reader = gguf.GGUFReader(path)
    types = {tensor.tensor_type.name for tensor in reader.tensors if tensor.name.endswith("attn_output.weight")}
    wanted = next(word.upper() for word in [*words, "bf16"] if re.fullmatch("(?i)q[48]_.*|b?f16|copy", word))
    assert types == {{"Q4_K_M": "Q4_K", "Q4_K_S": "Q4_K", "COPY": "Q8_0" if "-v2" in path.name else "F16"}.get(
        wanted, wanted)}  # fmt: skip
    if "--prune-layers" in words:
        assert len([tensor for tensor in reader.tensors if "attn_q" in tensor.name]) == 20
    for flag, name in ("--output-tensor-type", "output.weight"), ("--token-embedding-type", "token_embd.weight"):
        if flag in words:
            [tensor] = [tensor for tensor in reader.tensors if tensor.name == name]
            assert tensor.tensor_type.name == words[words.index(flag) + 1].upper()


def check_imatrix(words: list[str], out: str, runner: Runner) -> None:
    if "--show-statistics" in words:
        assert "by layer" in out
        return
    path = next(iter(runner.inputs.outputs), Path("imatrix.gguf"))
    legacy = path.suffix == ".dat" or "dat" in words
    assert path.read_bytes()[:4] != b"GGUF" if legacy else "imatrix.datasets" in gguf.GGUFReader(path).fields


def check_measurements(words: list[str], out: str) -> None:
    """Check that there is a row for each combination of the values."""
    if words[0] == "llama-batched-bench":
        assert len(out.splitlines()) > 3
        return
    output = words[words.index("-o") + 1] if "-o" in words else "md"
    assert MEASUREMENTS[output] in out
    rows = {
        "csv": lambda: [*csv.DictReader(io.StringIO(out))], "json": lambda: json.loads(out),
        "jsonl": lambda: [*map(json.loads, out.splitlines())], "sql": lambda: re.findall("INSERT INTO", out),
        "md": lambda: out.splitlines()[2:],
    }[output]()  # fmt: skip
    assert len(rows) == number_of_tests(words)


def number_of_tests(words: list[str]) -> int:
    values = {"-p": "512", "-n": "128", "-d": "0", "-b": "1", "-t": "1"}
    values |= {flag: value for flag, value in pairwise(words) if flag in values}
    counts = {flag: len([each for each in value.split(",") if each != "0"]) for flag, value in values.items()}
    models = max(1, words.count("-m"))
    return (counts["-p"] + counts["-n"]) * len(values["-d"].split(",")) * counts["-b"] * counts["-t"] * models


def check_ollama(words: list[str], runner: Runner) -> None:
    named = [word for flag, word in pairwise(words) if not word.startswith("-") and flag not in ("-f", "--quantize")]
    command, names = "".join(words[1:2]), named[1:]
    if command == "serve" and "--help" not in words:
        check_server(words, runner)
        return
    if command in ("cp", "rm", "show"):
        assert runner.run(["ollama", "pull", names[0]])[0] == 0
    if command in ("ps", "stop"):
        code, out, err = with_server(words, runner)
    else:
        code, out, err = runner.run(words)
    assert code == 0, err
    if command == "run":
        assert ('"embedding": [' if "embed" in names[0] else ANSWER) in out
    elif command in ("cp", "create", "pull"):
        name = names[-1] if command == "cp" else names[0]
        assert ANSWER in runner.run(["ollama", "run", name, "Hi"])[1]
    elif command == "rm":
        assert names[0] not in runner.run(["ollama", "list"])[1].split()
    elif command == "stop":
        assert "unloaded" in err
    else:
        assert out


def with_server(words: list[str], runner: Runner) -> tuple[int, str, str]:
    """Run a command line that asks a server with one model, which is loaded."""
    runner.inputs.put("answering", "model.gguf")
    with ServerProcess(runner.inputs.work / "model.gguf", "--alias", "gemma4") as server:
        return runner.run([*words, "--port", str(server.port)])
