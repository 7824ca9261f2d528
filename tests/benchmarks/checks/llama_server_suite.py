"""Runs the test suite of llama.cpp's server against `localinfer serve`.

The suite is part of llama.cpp's source (`tools/server/tests`) and is neither copied nor changed. Its models, which it
would download, are replaced by tiny ones (`llama_server_models.py`); what depends on the words of its models cannot
pass then. A test whose only mismatches are such words (`match_regex`) is counted apart.

    python tests/benchmarks/checks/llama_server_suite.py LLAMA_CPP/tools/server/tests --python SUITE_PYTHON [ARG]...

SUITE_PYTHON is the Python of an environment with the packages of the suite's requirements.txt and pytest-timeout;
further arguments are pytest's. `--stories FOLDER` names the folder of stories260K.bin and tok512.bin, the suite's own
text model as the author of llama2.c published it. The environment variable PORT selects another port than 8080.

Three defaults of llama-server differ from ours, so they are set before the server starts: --ctx-size is divided among
the slots unless --kv-unified is set, /metrics is off unless --metrics is set, and pages of any origin may send requests
unless --cors-origins or --tools is set.

The tests of a server with several models find theirs in a cache of the hub, and download them from a hub on loopback.
Like llama.cpp's server, ours then makes each request last FAKE_SECONDS longer, because the tests need busy models.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

THIS_FILE = Path(__file__).resolve()
TEST_SECONDS = 180
FILE_BY_REPOSITORY = {  # of the suite's models: what takes their place
    "ggml-org/test-model-stories260K": "llama.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/stories15M_MOE": "experts.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "gemma3.gguf",
    "ggml-org/models": "",  # see FILE_BY_HUB_FILE
    "ggml-org/Qwen2.5-Coder-1.5B-IQ3_XXS-GGUF": "qwen2.5-coder-1.5b",
}
FILE_BY_HUB_FILE = {
    "tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": "split-00001-of-00003.gguf",
    "bert-bge-small/ggml-model-f16.gguf": "bert.gguf",
    "jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "reranker.gguf",
}
HUB_FILES = {  # repositories of the hub, their files, and what takes their place
    "ggml-org/tinygemma3-GGUF": ("tinygemma3-Q8_0.gguf", "gemma3.gguf"),
    "ggml-org/test-model-stories260K": ("stories260K-F32.gguf", "llama.gguf"),
    "ggml-org/test-model-stories260K-infill": ("stories260K-infill-F32.gguf", "infill.gguf"),
    "ggml-org/test-model-router-download": ("stories260K-F16.gguf", "llama.gguf"),
}
DOWNLOADED_LATER = "ggml-org/test-model-router-download"
REPOSITORY_OF_PRESETS = "ggml-org/test-preset-ci"
PRESETS = """
[*]
ctx-size = 512
[tinygemma3-preset]
hf = ggml-org/tinygemma3-GGUF:Q8_0
[stories260K-test]
hf = ggml-org/test-model-stories260K
temp = 0
"""
MODEL_FLAGS = ("-m", "--model", "--model-url", "--hf-repo")
FAKE_SECONDS = 2
DRAFT_MODEL = "stories15M-q4_0.gguf"  # in the suite's folder of downloads
Outcome = dict[str, Any]


# --- the server that the suite starts ---


def serve(typed: Sequence[str]) -> None:
    """Run `localinfer serve` with the arguments that the suite has for llama-server."""
    sys.path.insert(0, str(THIS_FILE.parents[3]))
    from cli.__main__ import main

    if not any(flag in typed for flag in MODEL_FLAGS):
        make_requests_slow()
    sys.argv = ["localinfer", "serve", *server_arguments(typed, Path(os.environ["LOCALINFER_SUITE_MODELS"]))]
    main()


def make_requests_slow() -> None:
    """Let each request use its model for some time before it begins, as llama.cpp's server does for these tests."""
    import asyncio
    from contextlib import asynccontextmanager

    from localinfer.server.dispatcher import Dispatcher

    original = Dispatcher.using

    @asynccontextmanager
    async def using(self: Dispatcher, name: str | None) -> Any:
        async with original(self, name) as found:
            await asyncio.sleep(FAKE_SECONDS)
            yield found

    Dispatcher.using = using  # type: ignore[method-assign,assignment]


def server_arguments(typed: Sequence[str], models: Path) -> list[str]:
    """Return the arguments with a local model, and with the size of the context of one slot."""
    options = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--hf-repo", "--hf-file", "--ctx-size"):
        options.add_argument(name)
    options.add_argument("--parallel", default="4")
    options.add_argument("--kv-unified", action="store_true")
    options.add_argument("--offline", action="store_true")
    options.add_argument("--metrics", action="store_true")
    options.add_argument("--cors-origins")
    options.add_argument("--tools")
    known, rest = options.parse_known_args(typed)
    arguments = ["--parallel", known.parallel, *(["--kv-unified"] if known.kv_unified else []), *rest]
    if known.hf_repo == REPOSITORY_OF_PRESETS:
        arguments += ["--hf-repo", known.hf_repo]
    elif known.hf_repo:
        name = FILE_BY_HUB_FILE.get(known.hf_file or "") or FILE_BY_REPOSITORY.get(known.hf_repo, "")
        if not name:
            raise SystemExit(f"no local model takes the place of {known.hf_repo} {known.hf_file or ''}")
        arguments += ["--model", str(models / name) if name.endswith(".gguf") else name]
    if known.ctx_size:
        size = int(known.ctx_size) // (1 if known.kv_unified else int(known.parallel))
        arguments += ["--ctx-size", str(size)]
    arguments.append("--metrics" if known.metrics else "--no-metrics")
    arguments += ["--tools", known.tools] if known.tools else []
    if origins := known.cors_origins or ("" if known.tools else "*"):
        arguments += ["--cors-origins", origins]
    return arguments


# --- within the suite's pytest: this file is a plugin ---


def pytest_configure(config: Any) -> None:
    """Replace the comparison with the words of the suite's models by one that notes a mismatch, and omit the download
    of the models.
    """
    import utils  # type: ignore[import-not-found]  # of the suite

    original = utils.match_regex
    config.word_mismatches = mismatches = []

    def match_regex(regex: str, text: str) -> bool:
        if not original(regex, text):
            mismatches.append(regex)
        return True

    utils.match_regex = match_regex
    utils.ServerPreset.load_all = lambda: None  # it would start a server for each model, so that all are downloaded


def pytest_runtest_logreport(report: Any) -> None:
    """Append the outcome of a test to the file of outcomes."""
    if report.when == "call" or report.outcome != "passed":
        lines = [line for line in str(report.longrepr or "").splitlines() if line.startswith("E  ")]
        outcome = {"test": report.nodeid, "outcome": report.outcome, "why": " ".join(lines[:1])[:200]}
        outcome |= dict(report.user_properties)
        with Path(os.environ["LOCALINFER_SUITE_OUTCOMES"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")


def pytest_runtest_setup(item: Any) -> None:
    item.config.word_mismatches.clear()


def pytest_runtest_teardown(item: Any) -> None:
    item.config.word_mismatches.clear()


def pytest_pyfunc_call(pyfuncitem: Any) -> None:
    """Mark the test before its report exists; the list is filled while the test runs."""
    pyfuncitem.user_properties.append(("words", pyfuncitem.config.word_mismatches))


def pytest_runtest_makereport(item: Any) -> None:
    item.user_properties[:] = [(name, list(value)) for name, value in item.user_properties]


# --- the run ---


@contextmanager
def hub_with_models(folder: Path) -> Iterator[dict[str, str]]:
    """Run a hub on loopback, download its models except one, and yield the environment of a server that uses both."""
    from loopback_hub import Hub

    with Hub() as hub:
        for repository, (name, local) in HUB_FILES.items():
            hub.repos[repository] = {name: (folder / local).read_bytes()}
        hub.repos[REPOSITORY_OF_PRESETS] = {"preset.ini": PRESETS.encode()}
        variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(folder / "hub"), "NO_PROXY": "*"}
        variables |= {"LOCALINFER_CONFIG_DIR": str(folder / "config")}
        for repository in HUB_FILES.keys() - {DOWNLOADED_LATER}:
            command = [sys.executable, "-m", "cli", "pull", f"hf:{repository}"]
            subprocess.run(command, cwd=THIS_FILE.parents[3], env=os.environ | variables, check=True)
        yield variables


def run_suite(
    suite: Path, python: str, arguments: Sequence[str], folder: Path, stories: Path | None
) -> list[Outcome]:
    """Run the suite and return the outcome of each test."""
    sys.path[:0] = [str(THIS_FILE.parents[2])]
    from locations import PYTHONPATH

    sys.path[:0] = PYTHONPATH
    from llama_server_models import make_models

    make_models(folder, suite.parents[2] / "models", stories)
    downloads = suite / "tmp"
    downloads.mkdir(exist_ok=True)
    (downloads / DRAFT_MODEL).write_bytes((folder / "draft.gguf").read_bytes())
    server = folder / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{THIS_FILE}" --as-server "$@"\n', encoding="utf-8")
    server.chmod(0o755)
    outcomes = folder / "outcomes.jsonl"
    outcomes.touch()
    environment = os.environ | {
        "LLAMA_SERVER_BIN_PATH": str(server), "LOCALINFER_SUITE_MODELS": str(folder),
        "LOCALINFER_SUITE_OUTCOMES": str(outcomes), "PYTHONPATH": f"{THIS_FILE.parent}:{suite}",
    }  # fmt: skip
    command = [python, "-m", "pytest", "-q", "--tb=short", "-p", THIS_FILE.stem, "-m", "not slow"]
    with hub_with_models(folder) as variables:
        command += [f"--timeout={TEST_SECONDS}", *arguments]
        subprocess.run(command, cwd=suite, env=environment | variables, check=False)
    return [json.loads(line) for line in outcomes.read_text(encoding="utf-8").splitlines()]


def kind_of(outcome: Outcome) -> str:
    return "other words" if outcome["outcome"] == "passed" and outcome.get("words") else str(outcome["outcome"])


def report(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line for each test that does not pass, then a table of all files."""
    by_test = {outcome["test"]: outcome for outcome in outcomes}  # an error of the clean-up comes after the test
    counts: dict[str, Counter[str]] = {}
    for test, outcome in by_test.items():
        counts.setdefault(test.partition("::")[0], Counter())[kind_of(outcome)] += 1
        if outcome["outcome"] == "failed":
            yield f"{test}: {outcome['why']}"
    columns = ("passed", "other words", "failed", "skipped")
    yield f"{'':38}" + "".join(f"{column:>13}" for column in columns)
    for name, row in [*sorted(counts.items()), ("total", sum(counts.values(), Counter()))]:
        yield f"{name:38}" + "".join(f"{row[column]:13}" for column in columns)


def main() -> None:
    if sys.argv[1:2] == ["--as-server"]:
        return serve(sys.argv[2:])
    parser = argparse.ArgumentParser(description="Runs llama.cpp's server tests against `localinfer serve`.")
    parser.add_argument("suite", type=Path, help="the folder tools/server/tests of llama.cpp")
    parser.add_argument("--python", default=sys.executable, help="Python with the packages of the suite")
    parser.add_argument("--stories", type=Path, help="folder of stories260K.bin and tok512.bin")
    known, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in report(run_suite(known.suite.resolve(), known.python, arguments, Path(folder), known.stories)):
            print(line)
    return None


if __name__ == "__main__":
    main()
