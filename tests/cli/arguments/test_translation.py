"""Translation of llama.cpp's and Ollama's command lines to localinfer's."""

import pytest

from cli.app import COMMANDS, build_program
from cli.arguments import compatibility
from cli.arguments.translation import CommandSpec, Redirect, translate
from localinfer.errors import UnsupportedError, UsageError

GENERATE = CommandSpec(
    "generate",
    {
        "-p": ("--prompt", 1), "--prompt": ("--prompt", 1), "-c": ("--ctx-size", 1), "--ctx-size": ("--ctx-size", 1),
        "--ctx-policy": ("--ctx-policy", 1), "-n": ("--n-predict", 1), "--top-k": ("--top-k", 1),
        "--temp": ("--temp", 1), "-ctk": ("--cache-type-k", 1), "-q": ("--quiet", 0), "--quiet": ("--quiet", 0),
    },
    models=1,
)  # fmt: skip


def words(*typed: str) -> list[str]:
    return translate(typed, GENERATE).words


def test_flags_of_no_program() -> None:
    chat = CommandSpec("chat", {"--continue": ("--continue", 0), "--session": ("--session", 1)}, models=1)
    with pytest.raises(UsageError, match=r"`localinfer chat`; did you mean --continue or --session NAME[?]$"):
        translate(["--resume"], chat)
    verify = CommandSpec("verify", {"--cache-type-k": ("--cache-type-k", 1)}, models=1)
    with pytest.raises(UsageError, match=r"--memory: no such option of `localinfer verify`; other commands have it$"):
        translate(["--memory", "4G"], verify)
    with pytest.raises(UsageError, match=r"`localinfer generate`$"):
        translate(["--resume"], GENERATE)


def test_flags_of_the_command_are_unchanged() -> None:
    line = translate(["model", "-p", "text", "-q"], GENERATE)
    assert line.words == ["model", "-p", "text", "-q"]
    assert line.warnings == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["-m", "x.gguf"], ["x.gguf"]),
        (["-p", "text", "--model", "x.gguf"], ["x.gguf", "-p", "text"]),
        (["--model=x.gguf"], ["x.gguf"]),
        (["-m", "a", "-m", "b"], ["b"]),
        (["-hf", "owner/repo:Q4_0", "-p", "x"], ["hf:owner/repo:Q4_0", "-p", "x"]),
        (["--hf_repo=hf:owner/repo"], ["hf:owner/repo"]),
        (["-hff", "m.gguf", "-hf", "owner/repo:Q4_0"], ["hf:owner/repo/m.gguf"]),
        (["-mu", "https://example.org/m.gguf"], ["https://example.org/m.gguf"]),
        (["--fim-qwen-3b-default"], ["hf:ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF"]),
        (["--top-k", "5", "--gpt-oss-20b-default"], [
            "hf:ggml-org/gpt-oss-20b-GGUF", "--top-k", "0", "--temp", "1", "--top-k", "5",  # the last one counts
        ]),
        (["-ctx", "5"], ["--ctx-size", "5"]),
        (["--top_k", "5"], ["--top-k", "5"]),
        (["--ctx_size=5"], ["--ctx-size", "5"]),
        (["--temperature", "0"], ["--temp", "0"]),
        (["--max-tokens", "5", "--num_ctx=64"], ["-n", "5", "--ctx-size", "64"]),
        (["--context-shift"], ["--ctx-policy", "ring"]),
        (["-c4096", "-n-1"], ["-c", "4096", "-n", "-1"]),
        (["-p", "-ngl", "-p", "--top_k"], ["-p", "-ngl", "-p", "--top_k"]),
        (["-n", "-2"], ["-n", "-1"]),
        (["--top-k", "-1", "--temp", "-1"], ["--top-k", "0", "--temp", "0"]),
        (["--log-disable"], ["--quiet"]),
        (["-", "--", "-ngl", "--top_k"], ["-", "--", "-ngl", "--top_k"]),
        (["-no-cnv"], []),
        (["-p", "a=b", "--prompt=a=b"], ["-p", "a=b", "--prompt", "a=b"]),
    ],
)
def test_resolve_command(typed: list[str], meant: list[str]) -> None:
    assert words(*typed) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--mmap -p 1", "--mmap -p 1"),
        ("-lm mmap", "--mmap"),
        ("--load-mode=none", "--no-mmap"),
        ("-lm mlock", "--no-mmap --mlock"),
        ("--load_mode mmap+mlock", "--mmap --mlock"),
        ("-lm auto", ""),
        ("-mmp 0", "--no-mmap"),
        ("--mmap 0 -p 0", "--no-mmap -p 0"),
        ("--mmap=1", "--mmap"),
    ],
)
def test_load_mode_and_mmap(typed: str, meant: str) -> None:
    options = {"--mmap": ("--mmap", 0), "--no-mmap": ("--mmap", 0), "--mlock": ("--mlock", 0), "-p": ("-p", 1)}
    assert translate(typed.split(), CommandSpec("bench", options, models=1)).words == meant.split()


@pytest.mark.parametrize(
    ("typed", "warnings"),
    [
        (["-ngl", "99", "x"], ["-ngl has no effect: all computation runs on the CPU"]),
        (["-ngl", "9", "-sm", "none", "-ngl", "1", "x"], ["-ngl, -sm have no effect: all computation runs on the CPU"]),
        (["--server-base", "2", "x"], ["--server-base is not supported: the model runs locally"]),
        (["-ctk", "bf16", "x"], ["-ctk bf16: using f16"]),
        (["--jinja", "x"], []),
    ],
)
def test_warnings(typed: list[str], warnings: list[str]) -> None:
    line = translate(typed, GENERATE)
    assert line.warnings == warnings
    assert line.words[-1] == "x"


@pytest.mark.parametrize("typed", ["-fa", "-fa on", "-fa 0", "--color", "--color AUTO", "--flash_attn", "--color=off"])
def test_optional_values(typed: str) -> None:
    assert words(*typed.split(), "x", "off") == ["x", "off"]


REFUSED = sorted({flag for row in compatibility.REFUSED for flag in f"{row[1]} {row[2]}".split()})


@pytest.mark.parametrize("typed", REFUSED)
@pytest.mark.parametrize("command", ["chat", "generate", "embed", "batch"])
def test_flags_that_change_the_answer_are_errors(typed: str, command: str) -> None:
    name, _, values = typed.partition(":")
    with pytest.raises(UnsupportedError, match=f"^{name} is not supported: .{{10}}"):
        translate([name, *["file"] * int(values or 1), "x"], CommandSpec(command, {}, models=1))


def test_default_values_of_refused_flags_have_no_effect() -> None:
    assert words("--rope-freq-base", "0", "--yarn-ext-factor=-1.0", "-gan", "1", "x") == ["x"]


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        (["--typical", "1"], "--typical: no such option of `localinfer generate`; other commands have it"),
        (["--tmp", "1"], "--tmp: no such option of `localinfer generate`; did you mean --temp?"),
        (["--flash-atn"], "--flash-atn: no such option of `localinfer generate`; did you mean --flash-attn?"),
        (["-qp"], "-qp: no such option of `localinfer generate`"),
        (["--hf-rpo", "x"], "--hf-rpo: no such option of `localinfer generate`; did you mean --hf-repo?"),
        (["-p"], "-p: missing value"),
        (["-m"], "-m: missing value"),
        (["-ngl"], "-ngl: missing value"),
        (["--quiet=1"], "--quiet: takes no value"),
    ],
)
def test_usage_errors(typed: list[str], problem: str) -> None:
    with pytest.raises(UsageError) as error:
        words(*typed)
    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("typed", "other"),
    [
        (["-p", "x", "-cnv"], ["chat", "-p", "x", "-cnv"]),
        (["-cl", "-p", "x"], ["list"]),
        (["--usage"], ["--help"]),
        (["-p", "x", "--version"], ["--version"]),
        (["-sys", "Be brief.", "-no-cnv", "-p", "x"], ["chat", "-sys", "Be brief.", "-p", "x"]),
        (["--chat-template=chatml", "-p", "x"], ["chat", "--chat-template=chatml", "-p", "x"]),
    ],
)
def test_flags_of_another_command(typed: list[str], other: list[str]) -> None:
    with pytest.raises(Redirect) as error:
        words(*typed)
    assert error.value.words == other


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--think", "Why?"], ["--think", "on", "Why?"]),
        (["--think"], ["--think", "on"]),
        (["--think", "off", "Why?"], ["--think", "off", "Why?"]),
        (["--think=false", "Why?"], ["--think", "off", "Why?"]),
        (["--think=low", "Why?"], ["--think", "on", "--reasoning-effort", "low", "Why?"]),
    ],
)
def test_think_may_have_a_value(typed: list[str], meant: list[str]) -> None:
    chat = CommandSpec("chat", {"--think": ("--think", 1), "--reasoning-effort": ("--reasoning-effort", 1)}, models=1)
    assert translate(typed, chat).words == meant


def test_commands_with_several_models() -> None:
    bench = CommandSpec("bench", {"-p": ("--n-prompt", 1)}, models=float("inf"))
    assert translate(["-m", "a", "-p", "5", "-m", "b", "c"], bench).words == ["a", "b", "-p", "5", "c"]
    assert translate(["-fa", "0,1", "--repack", "1", "c"], bench).words == ["c"]
    with pytest.raises(UsageError, match="-m: "):
        translate(["-m", "a"], CommandSpec("doctor", {}))


@pytest.mark.parametrize("name", COMMANDS)
def test_own_flags_are_not_listed_as_ignored(name: str) -> None:
    """Such a row would never apply, or would be wrong for the other commands."""
    program = build_program([name]).commands[name]
    with program.make_context(name, [], resilient_parsing=True) as context:
        options = program.spec(context).options
    tables = compatibility.NO_EFFECT + compatibility.UNSUPPORTED + compatibility.REFUSED
    tables += compatibility.NO_EFFECT_BY_COMMAND.get(name, ())
    flags = {flag.partition(":")[0] for row in tables for flag in f"{row[1]} {row[2]}".split()}
    assert options.keys() & flags <= MEANT_OTHERWISE


MEANT_OTHERWISE = {  # flags of one command; the others ignore or refuse them
    "--override-kv", "--display-prompt", "--truncate", "--dimensions",
    "--lora", "--lora-scaled", "--lora-init-without-apply",
    "--control-vector", "--control-vector-scaled", "--control-vector-layer-range", "-v", "--check-tensors",
    "--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx", "--yarn-ext-factor",
    "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast",
}  # fmt: skip


def test_each_flag_is_in_one_row() -> None:
    rows = compatibility.ALWAYS_ON + compatibility.NO_EFFECT + compatibility.UNSUPPORTED + compatibility.REFUSED
    flags = [flag.partition(":")[0] for row in rows for flag in f"{row[1]} {row[2]}".split()]
    assert len(flags) == len(set(flags))
