"""Models in one file and in several: all metadata to the bit, all tensors, from whichever part is named."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny import tiny_llama

from localinfer.errors import LocalInferError, Unsupported
from localinfer.files.gguf import open_gguf
from localinfer.files.source import Field
from localinfer.files.split import from_gguf


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Five tensors in three files, as the gguf package splits them."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(5)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.full((2, 32), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("m-*.gguf"))


def test_one_file(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    source, opened = from_gguf(path), open_gguf(path)
    assert list(source.fields) == list(opened.metadata)
    assert list(source.tensors) == list(opened.tensors)
    assert source.files == (path,)
    for name, tensor in source.tensors.items():
        assert np.array_equal(tensor.load(), opened.tensors[name].data)
        assert tensor.nbytes == opened.tensors[name].nbytes


def test_fields_are_what_the_file_says(tmp_path: Path) -> None:
    """Put together again, they are the bytes between the file's header and its tensor table."""
    path = tiny_llama(tmp_path / "m.gguf")
    raw = b""
    for key, field in from_gguf(path).fields.items():
        raw += Field.text(key).data + field.type.to_bytes(4, "little") + field.data
    assert path.read_bytes()[24 : 24 + len(raw)] == raw


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_part_stands_for_all(parts: list[Path], number: int) -> None:
    source = from_gguf(parts[number])
    assert source.files == tuple(parts)
    assert {name: tensor.part for name, tensor in source.tensors.items()} == {
        "t0": 0,
        "t1": 0,
        "t2": 1,
        "t3": 1,
        "t4": 2,
    }
    assert source.tensors["t3"].load().view(np.float32).tolist() == [3.0] * 64
    assert source.fields["llama.block_count"] == Field.uint32(5)
    assert not [key for key in source.fields if key.startswith("split.")]


def test_part_alone_is_no_model(parts: list[Path]) -> None:
    with pytest.raises(Unsupported, match=r"split\.count: this is a part of a model in 3 files; `localinfer quantize"):
        open_gguf(parts[0])


def test_part_that_is_missing(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(LocalInferError, match=f"^{parts[1]}: no such file"):
        from_gguf(parts[0])


def test_part_under_the_name_of_another(parts: list[Path]) -> None:
    shutil.copy(parts[0], parts[2])
    with pytest.raises(LocalInferError, match=f"^{parts[2]}: split.no: must be 2"):
        from_gguf(parts[0])


def test_part_under_a_name_of_its_own(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("first.gguf"))
    with pytest.raises(LocalInferError, match=f"^{renamed}: split.count: .* ends in -NNNNN-of-00003.gguf"):
        from_gguf(renamed)


def test_part_of_another_model(parts: list[Path], tmp_path: Path) -> None:
    tiny_llama(parts[1])
    with pytest.raises(LocalInferError, match=f"^{parts[1]}: split.count: must be 3"):
        from_gguf(parts[0])


@pytest.mark.parametrize("number", [0, 2])
def test_part_that_promises_other_tensors(parts: list[Path], number: int) -> None:
    content = parts[number].read_bytes()
    key = b"split.tensors.count" + (5).to_bytes(4, "little")  # an int32
    place = content.index(key) + len(key)
    assert content[place] == 5
    for promised, problem in (6, "6, but 5 tensors are in the parts"), (0, "0, but . tensors are in this file"):
        parts[number].write_bytes(content[:place] + bytes([promised]) + content[place + 1 :])
        with pytest.raises(LocalInferError, match=f"^{parts[number]}: split.tensors.count: {problem}"):
            from_gguf(parts[0])


def test_source_that_is_cut_short(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf")
    source = from_gguf(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(LocalInferError, match="changed or truncated"):
        source.tensors["output_norm.weight"].load()
