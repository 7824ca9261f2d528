"""Single-file and split models: metadata and tensors are identical, whichever split is opened."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from split_files import split
from tiny import tiny_gemma3, tiny_llama

import localinfer
from localinfer.errors import LocalInferError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field

TENSORS = 20  # of the model below


@pytest.fixture
def split_paths(tmp_path: Path) -> list[Path]:
    """Return the paths of a model split into three files; the single file is deleted."""
    whole = tiny_llama(tmp_path / "m.gguf")
    paths = split(whole, 7)
    whole.unlink()
    return paths


class TestOpened:
    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_any_split_opens_the_model(self, split_paths: list[Path], number: int) -> None:
        f = open_gguf(split_paths[number])
        assert f.path == split_paths[0]
        assert [file.path for file in f.files] == split_paths
        assert f.size == sum(path.stat().st_size for path in split_paths)
        assert [tensor.split_index for tensor in f.tensors.values()] == [0] * 7 + [1] * 7 + [2] * 6
        assert f.trailing_bytes == 0

    @pytest.mark.parametrize("bare_first", [False, True])
    def test_same_model_as_in_one_file(self, tmp_path: Path, bare_first: bool) -> None:
        whole = tiny_llama(tmp_path / "m.gguf")
        joined, f = open_gguf(whole), open_gguf(split(whole, 6, bare_first=bare_first)[1])
        assert list(f.tensors) == list(joined.tensors)
        for name, tensor in f.tensors.items():
            assert np.array_equal(tensor.data, joined.tensors[name].data)
            assert (tensor.shape, tensor.type) == (joined.tensors[name].shape, joined.tensors[name].type)
        keys = [key for key in f.metadata if not key.startswith("split.")]
        assert keys == list(joined.metadata)

    @pytest.mark.parametrize("write", [tiny_llama, tiny_gemma3])
    @pytest.mark.parametrize("per_file", [1, 8])
    def test_logits_are_those_of_one_file(self, tmp_path: Path, write: Callable[..., Path], per_file: int) -> None:
        whole = write(tmp_path / "m.gguf", type="Q4_0")
        ids = list(range(3, 40))
        with localinfer.load(whole, threads=1) as model:
            expected = model.logits(ids)
        paths = split(whole, per_file)
        whole.unlink()
        with localinfer.load(paths[-1], threads=1) as model:
            assert np.array_equal(model.logits(ids), expected)

    def test_split_changes_while_open(self, split_paths: list[Path]) -> None:
        with localinfer.load(split_paths[0], threads=1) as model:
            with split_paths[1].open("r+b") as file:
                file.truncate(split_paths[1].stat().st_size - 1)
            with pytest.raises(LocalInferError, match=f"^{split_paths[1]}: file changed or truncated"):
                model.stream("a")

    def test_errors_name_the_file_of_the_tensor(self, split_paths: list[Path]) -> None:
        f = open_gguf(split_paths[0])
        first, last = next(iter(f.tensors)), list(f.tensors)[-1]
        assert str(f.error(first, "x")) == f"{split_paths[0]}: {first}: x"
        assert str(f.error(f"tensor {last}", "x")) == f"{split_paths[2]}: tensor {last}: x"
        assert str(f.error("general.architecture", "x")).startswith(f"{split_paths[0]}: ")


class TestRefused:
    def test_missing_split(self, split_paths: list[Path]) -> None:
        split_paths[1].unlink()
        with pytest.raises(LocalInferError, match=f"^{split_paths[1]}: no such file"):
            open_gguf(split_paths[0])

    def test_split_with_another_number(self, split_paths: list[Path]) -> None:
        shutil.copy(split_paths[0], split_paths[2])
        with pytest.raises(LocalInferError, match=f"^{split_paths[2]}: split.no: must be 2"):
            open_gguf(split_paths[0])

    def test_split_with_unrelated_name(self, split_paths: list[Path]) -> None:
        renamed = split_paths[0].rename(split_paths[0].with_name("first.gguf"))
        with pytest.raises(LocalInferError, match=f"^{renamed}: split.count: .* ends in -NNNNN-of-00003.gguf"):
            open_gguf(renamed)

    def test_split_of_another_model(self, split_paths: list[Path]) -> None:
        tiny_llama(split_paths[1])
        with pytest.raises(LocalInferError, match=f"^{split_paths[1]}: split.count: must be 3"):
            open_gguf(split_paths[0])

    def test_tensor_in_two_splits(self, split_paths: list[Path]) -> None:
        key = b"split.no" + (2).to_bytes(4, "little")  # a uint16
        split_paths[1].write_bytes(split_paths[0].read_bytes().replace(key + b"\0", key + b"\1"))
        with pytest.raises(LocalInferError, match=f"^{split_paths[1]}: token_embd.weight: is also in another split"):
            open_gguf(split_paths[0])

    @pytest.mark.parametrize("number", [0, 2])
    def test_wrong_tensor_count(self, split_paths: list[Path], number: int) -> None:
        content = split_paths[number].read_bytes()
        key = b"split.tensors.count" + (5).to_bytes(4, "little")  # an int32
        offset = content.index(key) + len(key)
        assert content[offset] == TENSORS
        problems = (TENSORS + 1, "21, but 20 tensors are in the splits"), (0, "0, but . tensors are in this file")
        for promised, problem in problems:
            split_paths[number].write_bytes(content[:offset] + bytes([promised]) + content[offset + 1 :])
            with pytest.raises(LocalInferError, match=f"^{split_paths[number]}: split.tensors.count: {problem}"):
                open_gguf(split_paths[0])

    def test_split_truncated_anywhere(self, split_paths: list[Path]) -> None:
        """Each file is validated by itself: truncation is detected before any read past the end."""
        content = split_paths[2].read_bytes()
        for size in [*range(0, 2000, 7), *range(2000, len(content), 4001), len(content) - 33]:
            split_paths[2].write_bytes(content[:size])
            with pytest.raises(LocalInferError, match=f"^{split_paths[2]}: "):
                open_gguf(split_paths[0])


class TestSource:
    def test_one_file(self, tmp_path: Path) -> None:
        path = tiny_llama(tmp_path / "m.gguf")
        source, opened = from_gguf(path), open_gguf(path)
        assert list(source.fields) == list(opened.metadata)
        assert list(source.tensors) == list(opened.tensors)
        assert source.files == (path,)
        for name, tensor in source.tensors.items():
            assert np.array_equal(tensor.load(), opened.tensors[name].data)
            assert tensor.nbytes == opened.tensors[name].nbytes

    def test_fields_equal_the_file(self, tmp_path: Path) -> None:
        """Concatenated, the fields equal the bytes between the file's header and its tensor table."""
        path = tiny_llama(tmp_path / "m.gguf")
        raw = b""
        for key, field in from_gguf(path).fields.items():
            raw += Field.text(key).data + field.type.to_bytes(4, "little") + field.data
        assert path.read_bytes()[24 : 24 + len(raw)] == raw

    def test_several_files(self, split_paths: list[Path]) -> None:
        source, opened = from_gguf(split_paths[1]), open_gguf(split_paths[1])
        assert source.files == tuple(split_paths)
        assert [tensor.split_index for tensor in source.tensors.values()] == [0] * 7 + [1] * 7 + [2] * 6
        for name, tensor in source.tensors.items():
            assert np.array_equal(tensor.load(), opened.tensors[name].data)
        assert source.fields["llama.block_count"] == Field.uint32(2)
        assert not [key for key in source.fields if key.startswith("split.")]

    def test_truncated_source(self, tmp_path: Path) -> None:
        path = tiny_llama(tmp_path / "m.gguf")
        source = from_gguf(path)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)
        with pytest.raises(LocalInferError, match="changed or truncated"):
            source.tensors["output_norm.weight"].load()
