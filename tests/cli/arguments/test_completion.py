"""Shell completion, through the interface of the completion scripts and in the shells that are installed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal import Terminal

REAL = [sys.executable, "-m", "localinfer"]
Offered = Callable[..., list[str]]


@pytest.fixture
def offered(environment: dict[str, str], tmp_path: Path) -> Offered:
    """Return a function that gives the completions that bash gets for a line."""

    def run(line: str) -> list[str]:
        words = line.split(" ")
        variables = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        variables["_LOCALINFER_COMPLETE"] = "complete_bash"
        done = subprocess.run(REAL, env=environment | variables, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return run


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("localinfer gen", ["generate"]),
        ("localinfer generate --temp", ["--temp"]),
        ("localinfer generate --ctx-policy ", ["stop", "drop-turns", "ring"]),
        ("localinfer generate smol", ["smollm2"]),
        ("localinfer run smol", ["smollm2"]),
        ("localinfer generate -m smol", ["smollm2"]),
        ("localinfer generate -ngl 99 -fa on smol", ["smollm2"]),
        ("localinfer chat smollm2 ", []),
        ("localinfer chat --no-such-flag ", None),
        ("localinfer generate mine", ["mine.gguf"]),
        ("localinfer generate ./mi", ["./mine.gguf"]),
        ("localinfer compare smollm2 smol", ["smollm2"]),
        ("localinfer pull smol", ["smollm2"]),
        ("localinfer quantize mine.gguf Q4_K", ["Q4_K_M", "Q4_K_S"]),
        ("localinfer quantize mine.gguf out.gguf q8", ["q8_0"]),
        ("localinfer bench -o j", ["json", "jsonl"]),
        ("localinfer generate -f ", []),
    ],
)
def test_completions(offered: Offered, tmp_path: Path, line: str, expected: list[str] | None) -> None:
    """`None` means that the shell completes file names."""
    (tmp_path / "mine.gguf").touch()
    actual = offered(line)
    assert expected is None or actual == expected


def test_completion_ignores_a_broken_models_toml(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[[")
    variables = {"COMP_WORDS": "localinfer\ngenerate\nx", "COMP_CWORD": "2", "_LOCALINFER_COMPLETE": "complete_bash"}
    done = subprocess.run(
        REAL, env=environment | variables | {"LOCALINFER_CONFIG_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_completion_imports_no_heavy_modules(environment: dict[str, str]) -> None:
    variables = {"_TYPER_COMPLETE_ARGS": "localinfer generate --te", "_LOCALINFER_COMPLETE": "complete_zsh"}
    command = [sys.executable, "-X", "importtime", "-m", "localinfer"]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True)
    assert '"--temp":"Temperature' in done.stdout
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not modules & {"rich", "numpy", "numba", "llvmlite", "jinja2"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_in_a_real_shell(environment: dict[str, str], tmp_path: Path, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "localinfer").write_text(f'#!/bin/sh\nexec {sys.executable} -m localinfer "$@"\n')
    (tmp_path / "bin" / "localinfer").chmod(0o755)
    bare = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    load = {
        "bash": 'eval "$(localinfer --show-completion bash)"',
        "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(localinfer --show-completion zsh)"',
        "fish": "localinfer --show-completion fish | source",
    }[shell]
    path = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
    terminal = Terminal([program, *bare], environment | {"PATH": path, "HOME": str(tmp_path)}, columns=120)
    try:
        terminal.type(f"{load}; echo rea''dy\n")
        terminal.expect("ready")
        terminal.type("localinfer quantize smol\tQ4_K_\t\t")
        terminal.expect("smollm2 ")
        terminal.expect("Q4_K_M")
    finally:
        terminal.close()


def test_completion_script_options(environment: dict[str, str], tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        where = environment | {"HOME": str(tmp_path), "SHELL": "/bin/zsh"}
        return subprocess.run([*REAL, *arguments], env=where, capture_output=True, text=True)

    assert run("--show-completion").stdout.startswith("#compdef localinfer")
    assert "complete --command localinfer" in run("--show-completion", "fish").stdout
    done = run("--show-completion", "zhs")
    assert (done.returncode, done.stderr) == (2, "error: zhs: must be bash or zsh or fish; did you mean zsh?\n")
    done = run("--install-completion", "fish")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / ".config/fish/completions/localinfer.fish").exists()
