"""The command line with real models: typical first commands of a user."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from terminal import Terminal

Run = Callable[..., subprocess.CompletedProcess[str]]

LOCALINFER = [sys.executable, "-m", "localinfer"]
QUESTION = "What is the capital of France? Answer in one word."


@pytest.fixture
def localinfer(environment: dict[str, str]) -> Run:
    """Return a function that runs a command, with an empty stdin or a text."""

    def run(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        where = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        command = [*LOCALINFER, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, **where)

    return run


class TestGenerate:
    def test_greedy(self, localinfer: Run, smollm2: Path) -> None:
        done = localinfer("generate", "smollm2", "-p", "The capital of France is", "-n", "4", "--temp", "0")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(" Paris")
        assert "4 tokens" in done.stderr.splitlines()[-1]

    def test_result_is_independent_of_threads(self, localinfer: Run, smollm2: Path) -> None:
        command = ["generate", smollm2, "-p", "Once", "-n", "24", "-s", "7", "-t"]
        [text] = {localinfer(*command, threads).stdout for threads in ("1", "2", "3")}
        assert text

    def test_warm_start_imports_few_modules(self, environment: dict[str, str], localinfer: Run, smollm2: Path) -> None:
        arguments = ["generate", smollm2, "-p", "Hello", "-n", "1", "-q"]
        assert localinfer(*arguments).returncode == 0
        listing = [sys.executable, "-X", "importtime", "-m", "localinfer", *arguments]
        done = subprocess.run(listing, env=environment, capture_output=True, text=True)
        assert re.search(r"\| +numpy\b", done.stderr)
        heavy = ["numba", "jinja2", "rich", "pydantic", "importlib.metadata", "llguidance", "concurrent.futures"]
        heavy += ["psutil"] * (sys.platform == "linux")
        assert not re.findall(rf"\| +({'|'.join(heavy)})$", done.stderr, re.MULTILINE)

    def test_printed_command_line_reproduces_the_output(self, localinfer: Run, smollm2: Path) -> None:
        ours = localinfer("generate", "smollm2", "-p", "One\ntwo", "-n", "8", "--temp", "0")
        copied = ["-m", smollm2, "-ngl", "99", "-fa", "on", "--no-mmap", "-ub", "256", "--top_k", "1", "--prompt"]
        done = localinfer("completion", *copied, r"One\ntwo", "-e", "-n", "8", "--temperature", "0", "-no-cnv")
        assert done.stdout == ours.stdout
        assert [line for line in done.stderr.splitlines() if line.startswith("warning: ")] == [
            "warning: -ngl has no effect: all computation runs on the CPU",
            "warning: -fa has no effect: attention always uses a blockwise algorithm like flash attention",
        ]

    def test_probabilities(self, localinfer: Run, smollm2: Path) -> None:
        command = ["generate", "smollm2", "-p", "The capital of France is", "-n", "1", "--temp", "0", "--logprobs", "2"]
        line, _ = localinfer(*command).stderr.splitlines()
        assert re.fullmatch(r"' Paris' 0\.\d{3} +' Paris' 0\.\d{3}  ' the' 0\.\d{3}", line)
        [entry] = json.loads(localinfer(*command, "--json", "-q").stdout)["logprobs"]
        assert entry["token"] == entry["top_logprobs"][0]["token"] == " Paris"
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] > entry["top_logprobs"][1]["logprob"]

    def test_complete_structured_output(self, localinfer: Run, smollm2: Path) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"],
                  "additionalProperties": False}  # fmt: skip
        done = localinfer("generate", "smollm2", "-p", "A number as JSON: ", "-j", json.dumps(schema))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["n"] <= 99
        choice = ["--choice", " Rome, Paris", "--choice", " Bern", "--temp", "0"]
        assert localinfer("generate", "smollm2", "-p", "The capital of France is", *choice).stdout == " Paris"
        answer = localinfer("chat", "smollm2", "--regex", "[0-9]{3}", stdin="How many days has a year?").stdout
        assert re.fullmatch("[0-9]{3}", answer)

    def test_incomplete_or_invalid_constraint(self, localinfer: Run, smollm2: Path) -> None:
        done = localinfer("generate", "smollm2", "-p", "x", "--regex", "a{20,}", "-n", "2", "--json", "-q")
        answer = json.loads(done.stdout)
        assert (answer["finish_reason"], len(answer["tokens"]), done.returncode) == ("length", 2, 1)
        *compiling, error = done.stderr.splitlines()
        assert error.startswith("error: the answer does not satisfy --regex: cut off, n_predict ")
        assert all(line.startswith("compiling kernels for this CPU (once): ") for line in compiling)
        done = localinfer("generate", "smollm2", "-p", "x", "-j", '{"properties": {"a": {"$ref": "#/b"}}}')
        assert (done.stdout, done.returncode) == ("", 6)
        *compiling, error = done.stderr.splitlines()
        assert error == "error: --json-schema: #/properties/a: Pointer '/b' does not exist"
        assert all(line.startswith("compiling kernels for this CPU (once): ") for line in compiling)

    def test_json(self, localinfer: Run, smollm2: Path) -> None:
        answer = json.loads(localinfer("generate", smollm2, "-p", "Hello", "-n", "5", "--json", "-q").stdout)
        assert len(answer["tokens"]) == answer["timings"]["generated_tokens"] == 5
        assert answer["finish_reason"] == "length"

    def test_pipe(self, localinfer: Run, gemma3: Path) -> None:
        done = localinfer("generate", "gemma3-270m", "-p", "Continue:", "-n", "8", "-q", stdin="some text\n")
        assert done.returncode == 0
        assert done.stdout
        assert "t/s" not in done.stderr

    def test_full_context(self, localinfer: Run, smollm2: Path) -> None:
        arguments = ["generate", "smollm2", "-p", "One two three", "-c", "32", "--ignore-eos", "-n", "40"]
        done = localinfer(*arguments, "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["finish_reason"]) == (5, "context")
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "--ctx-size" in done.stderr
        ring = localinfer(*arguments, "--json", "--ctx-policy", "ring")
        assert (ring.returncode, len(json.loads(ring.stdout)["tokens"])) == (0, 40)

    def test_prompt_that_does_not_fit(self, localinfer: Run, smollm2: Path) -> None:
        done = localinfer("generate", "smollm2", "-p", "word " * 100, "-c", "64")
        assert (done.returncode, done.stdout) == (5, "")
        [line] = done.stderr.splitlines()
        assert "64" in line

    def test_broken_file(self, localinfer: Run, tmp_path: Path) -> None:
        path = tmp_path / "broken.gguf"
        path.write_bytes(b"GGUF")
        for command in (["generate", "-p", "x"], ["chat"], ["inspect"], ["tokenize", "-p", "x"], ["bench"]):
            done = localinfer(command[0], path, *command[1:], stdin="x" if command == ["chat"] else None)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"error: {path}: ")
            assert done.stderr.count("\n") == 1

    @pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
    def test_limited_address_space(self, environment: dict[str, str], smollm2: Path) -> None:
        """Increase the address space limit from failing to map the file up to success."""
        import resource

        codes = []
        for mebibytes in range(200, 1000, 50):
            limit = partial(resource.setrlimit, resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))
            command = [*LOCALINFER, "generate", smollm2, "-p", "Hello", "-n", "1", "-q", "-t", "2"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=limit)
            codes.append(done.returncode)
            if done.returncode == 0:
                break
            [line] = done.stderr.splitlines()
            assert line.startswith("error: "), line
        assert set(codes[:-1]) == {4}
        assert codes[-1] == 0

    def test_interrupt_during_prefill(self, environment: dict[str, str], smollm2: Path) -> None:
        process = subprocess.Popen(
            [*LOCALINFER, "generate", "smollm2"], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin
        process.stdin.write(b"word " * 7000)
        process.stdin.close()
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        assert process.wait(10) == 130
        assert time.monotonic() - begin < 1.0  # 0.25 on a machine that does nothing else


class TestChat:
    def test_conversation(self, environment: dict[str, str], smollm2: Path) -> None:
        # The model repeats itself after an interrupted story, so the number of tokens is limited.
        with closing(Terminal([*LOCALINFER, "chat", "--temp", "0", "-n", "1000"], environment)) as t:
            t.expect("Number or name")
            t.type("smollm2\n")
            t.expect("smollm2: context 8,192 tokens", seconds=120)
            t.expect("> ")
            t.type(QUESTION + "\n")
            t.expect("Paris")
            t.expect("first token")
            t.expect("> ")
            t.type("Write a very long story about the sea.\n")
            t.expect("sea")  # the echoed input
            t.expect("sea", seconds=60)  # the answer
            t.ctrl("C")
            t.expect("stopped", seconds=5)
            t.expect("> ")
            t.type("Stop.\n")
            t.expect("t/s", seconds=120)
            t.expect("> ")
            t.ctrl("D")
            assert t.wait() == 0

    def test_equivalent_chat_commands(self, localinfer: Run, smollm2: Path) -> None:
        flags = ["-n", "12", "--temp", "0", "-q"]
        runs = [
            localinfer("chat", "smollm2", QUESTION, *flags),
            localinfer("run", "smollm2", *QUESTION.split(), "--verbose", *flags),
            localinfer("smollm2", QUESTION, *flags),
            localinfer("-m", smollm2, "-p", QUESTION, "-st", "--top-p", "0.9", *flags),
            localinfer("chat", "smollm2", *flags, stdin=QUESTION),
        ]
        [answer] = {done.stdout for done in runs}
        assert "Paris" in answer

    def test_piped(self, localinfer: Run, smollm2: Path) -> None:
        done = localinfer("chat", "--temp", "0", stdin=QUESTION)
        assert done.returncode == 0
        assert "Paris" in done.stdout

    def test_base_model(self, localinfer: Run, gemma3: Path) -> None:
        done = localinfer("chat", "gemma3-270m", stdin="Hello")
        assert (done.returncode, done.stdout) == (3, "")
        assert "localinfer generate" in done.stderr


class TestTables:
    def test_bench(self, localinfer: Run, smollm2: Path) -> None:
        arguments = ["bench", "smollm2", "-p", "8", "-n", "2", "-t", "1,2", "-d", "0,16", "-r", "2"]
        table = localinfer(*arguments).stdout.splitlines()
        assert [line.split("|")[6].strip() for line in table[2:]] == ["pp8", "tg2", "pp8 @ d16", "tg2 @ d16"] * 2
        results = json.loads(localinfer(*arguments, "-o", "json").stdout)
        assert [each["n_threads"] for each in results] == [1] * 4 + [2] * 4
        assert all(len(each["samples_ts"]) == 2 and each["avg_ts"] > 0 for each in results)

    def test_list(self, localinfer: Run, smollm2: Path) -> None:
        lines = localinfer("list").stdout.splitlines()
        assert lines[0].startswith("* smollm2")
        assert "here" in lines[0]
