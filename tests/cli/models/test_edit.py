"""`edit`: metadata change, tensors do not; an interruption or bad input changes nothing."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import split_files
import tiny

from localinfer.gguf import atomic_file
from localinfer.gguf.reader import GGUF, open_gguf

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.tiny_llama(tmp_path / "model.gguf", n_layer=1)


def tensors_of(f: GGUF) -> dict[str, bytes]:
    return {name: tensor.data.tobytes() for name, tensor in f.tensors.items()}


def test_value_of_the_same_size_is_written_into_the_file(run: Run, model: Path) -> None:
    before, inode = model.read_bytes(), model.stat().st_ino
    code, out, _ = run("edit", model, "--set", "llama.context_length=77")
    assert (code, model.stat().st_ino) == (0, inode)
    assert out.split() == ["llama.context_length", str(open_before(before, model)), "->", "77"]
    after = model.read_bytes()
    assert len(after) == len(before)
    assert sum(a != b for a, b in zip(before, after, strict=True)) <= 4
    assert open_gguf(model).get("llama.context_length", int) == 77


def open_before(content: bytes, model: Path) -> int:
    copy = model.with_name("before.gguf")
    copy.write_bytes(content)
    return open_gguf(copy).get("llama.context_length", int)


def test_longer_value_is_written_in_a_copy_that_takes_the_place(run: Run, model: Path) -> None:
    model.chmod(0o640)
    expected = tensors_of(open_gguf(model))
    text = "grün \N{SNOWMAN} " * 50
    assert run("edit", model, "--set", f"general.name={text}", "--set", "general.url=https://example.org")[0] == 0
    f = open_gguf(model)
    assert (f.get("general.name", str), f.get("general.url", str)) == (text, "https://example.org")
    assert tensors_of(f) == expected
    assert model.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.gguf"]


def test_other_readers_agree(run: Run, model: Path) -> None:
    """The `gguf` package reads the same values and tensors from an edited file."""
    settings = [
        ("test.text", "str:a=b:c"), ("test.flag", "bool:true"), ("test.byte", "u8:255"), ("test.count", "int:5"),
        ("test.sign", "int:-5"), ("test.big", "u64:18446744073709551615"), ("test.half", "float:0.5"),
        ("test.double", "f64:0.1"),
    ]  # fmt: skip
    before = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(model).tensors}
    words = [word for key, value in settings for word in ("--set", f"{key}={value}")]
    assert run("edit", model, *words)[0] == 0
    reader = gguf.GGUFReader(model)
    found = [reader.fields[key].contents() for key, _ in settings]
    assert found == ["a=b:c", True, 255, 5, -5, 2**64 - 1, 0.5, 0.1]
    assert all(np.array_equal(tensor.data, before[tensor.name]) for tensor in reader.tensors)


def test_arrays_keep_their_type(run: Run, model: Path) -> None:
    f = open_gguf(model)
    types = f.get("tokenizer.ggml.token_type", np.ndarray)
    values = [1] * len(types)
    assert run("edit", model, "--set", f"tokenizer.ggml.token_type={values}")[0] == 0
    after = open_gguf(model).get("tokenizer.ggml.token_type", np.ndarray)
    assert after.dtype == types.dtype
    assert after.tolist() == values


def test_removed_key_and_new_file(run: Run, model: Path, tmp_path: Path) -> None:
    before, out = model.read_bytes(), tmp_path / "out.gguf"
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    words = ["--set-file", f"tokenizer.chat_template={template}", "--remove", "general.name", "-o", out]
    assert run("edit", model, *words)[0] == 0
    assert model.read_bytes() == before
    f = open_gguf(out)
    assert f.get("tokenizer.chat_template", str) == "{{ messages[0].content }}"
    assert "general.name" not in f.metadata
    assert run("edit", model, *words)[0] == 2  # the file exists
    assert run("edit", model, *words, "--force")[0] == 0


def test_first_file_of_a_split_model_is_changed(run: Run, model: Path) -> None:
    paths = split_files.split(model, 5)
    rest = [path.read_bytes() for path in paths[1:]]
    expected = tensors_of(open_gguf(paths[0]))
    assert run("edit", paths[1], "--set", "general.name=" + "x" * 99)[0] == 0
    f = open_gguf(paths[-1])
    assert f.get("general.name", str) == "x" * 99
    assert tensors_of(f) == expected
    assert [path.read_bytes() for path in paths[1:]] == rest


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "requires --set, --set-file or --remove"),
        (["--set", "general.name"], "must be KEY=VALUE"),
        (["--set", "=5"], "must be KEY=VALUE"),
        (["--set", "llama.context_length=x"], "llama.context_length: must be of type uint32, not x"),
        (["--set", "llama.context_length=-1"], "llama.context_length: must be of type uint32, not -1"),
        (["--set", "llama.attention.layer_norm_rms_epsilon=nan"], "epsilon: must be of type float32, not nan"),
        (["--set", "llama.context_length=99999999999"], "must be of type uint32"),
        (["--set", "llama.new_key=5"], "llama.new_key: is a new key: write TYPE:VALUE"),
        (["--set", "llama.new_key=u8:256"], "llama.new_key: 256 is not a valid u8"),
        (["--set", "tokenizer.ggml.token_type=[1.5]"], "must be of type JSON array of int32"),
        (["--set", "tokenizer.ggml.token_type=5"], "must be of type JSON array of int32"),
        (["--set", "tokenizer.ggml.tokens=[1]"], "must be of type JSON array of string"),
        (["--set", "general.alignment=u32:64"], "general.alignment: determines where the tensors are"),
        (["--set", "split.count=u16:64"], "split.count: determines where the tensors are"),
        (["--remove", "general.nothing"], "the file has no such key"),
        (["--set-file", "general.name=/nowhere/x"], "--set-file: /nowhere/x: No such file"),
        (["--set", "general.name=x", "--force"], "--force: requires -o"),
    ],
)
def test_bad_changes_leave_the_file(run: Run, model: Path, words: list[str], problem: str) -> None:
    before = model.read_bytes()
    code, out, err = run("edit", model, *words)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1
    assert model.read_bytes() == before


def test_a_model_name_needs_an_output(run: Run) -> None:
    code, _, err = run("edit", "smollm2", "--set", "general.name=x")
    assert (code, err) == (2, "error: smollm2: is a model name, not a file; -o OUT writes a changed copy\n")
    assert run("edit", "missing.gguf", "--set", "general.name=x")[0] == 3


def test_dry_run_and_unchanged_values(run: Run, model: Path) -> None:
    before, time = model.read_bytes(), model.stat().st_mtime_ns
    assert "general.name" in run("edit", model, "--set", "general.name=other", "--dry-run")[1]
    name = open_gguf(model).get("general.name", str)
    assert run("edit", model, "--set", f"general.name={name}")[:2] == (0, "nothing changes\n")
    assert (model.read_bytes(), model.stat().st_mtime_ns) == (before, time)


def test_failure_while_writing_leaves_the_file(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "replace", fail)
    code, _, err = run("edit", model, "--set", "general.name=" + "x" * 99)
    assert code == 1
    assert "No space left" in err
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["model.gguf"]


def test_command_lines_of_llama_cpp(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("gguf-set-metadata", model, "general.name", "Tiny one", "--force")[0] == 0
    assert open_gguf(model).get("general.name", str) == "Tiny one"
    out = tmp_path / "new.gguf"
    words = ["--general-description", "a: b", "--special-token-by-id", "eos", "3", "--remove-metadata", "general.name"]
    assert run("gguf-new-metadata", *words, model, out)[0] == 0
    f = open_gguf(out)
    assert (f.get("general.description", str), f.get("tokenizer.ggml.eos_token_id", int)) == ("a: b", 3)
    assert "general.name" not in f.metadata
    assert run("gguf-set-metadata", model, "general.name")[0] == 2
    assert run("gguf-new-metadata", model)[0] == 2
