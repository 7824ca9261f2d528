"""Quantization writes every tensor in its type, independent of the number of threads; or it leaves no file."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import malicious_files
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from sources import from_arrays
from tiny import tiny_llama

from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field, Source, SourceTensor
from localinfer.quantization.quantize import Matrix, OutputOptions, make_encoder_factory, quantize
from quant.encoders.encoder import Encoder

F32, F16, Q8_0 = (int(GGMLQuantizationType[name]) for name in ("F32", "F16", "Q8_0"))
PLAIN = make_encoder_factory("normal", {})
REPLACE = OutputOptions(replace=True)
LARGE_SHAPE = (3, 700, 256)  # several slices for each of three experts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in F16, with an expert tensor."""
    experts = np.random.default_rng(1).standard_normal(LARGE_SHAPE, np.float32)
    path = tmp_path_factory.mktemp("source") / "m.gguf"
    return tiny_llama(path, type="F16", **{"blk.0.ffn_up_exps.weight": experts})


def to_q8_0(source: Source) -> dict[str, int]:
    """Matrices in Q8_0, vectors unchanged."""
    return {name: Q8_0 if len(tensor.shape) > 1 else tensor.type for name, tensor in source.tensors.items()}


def written(path: Path, out: Path, **more: Any) -> Path:
    source = from_gguf(path)
    quantize(source, out, to_q8_0(source), **{"encoder_factory": PLAIN, "threads": 2} | more)
    return out


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


class TestOutput:
    def test_blocks_match_gguf_package(self, model: Path, tmp_path: Path) -> None:
        old, new = open_gguf(model), open_gguf(written(model, tmp_path / "out.gguf"))
        assert list(new.tensors) == list(old.tensors)
        for name, tensor in old.tensors.items():
            expected = tensor.data
            if tensor.type == F16:
                values = tensor.data.view(np.float16).astype(np.float32).reshape(tensor.shape)
                expected = gguf.quantize(values, GGMLQuantizationType.Q8_0).reshape(-1)
            elif name == "blk.0.ffn_up_exps.weight":
                values = tensor.data.view(np.float32).reshape(tensor.shape)
                expected = gguf.quantize(values, GGMLQuantizationType.Q8_0).reshape(-1)
            assert np.array_equal(new.tensors[name].data, expected), name
            assert new.tensors[name].shape == tensor.shape

    def test_metadata_is_preserved_exactly(self, model: Path, tmp_path: Path) -> None:
        out = written(model, tmp_path / "out.gguf")
        assert from_gguf(out).fields == from_gguf(model).fields
        assert list(from_gguf(out).fields) == list(from_gguf(model).fields)

    def test_other_metadata(self, model: Path, tmp_path: Path) -> None:
        fields = {"general.architecture": Field.text("llama"), "general.alignment": Field.uint32(256)}
        source = replace(from_gguf(model), fields=fields)
        quantize(source, tmp_path / "out.gguf", to_q8_0(source), encoder_factory=PLAIN)
        out = open_gguf(tmp_path / "out.gguf")
        assert (out.metadata, out.alignment) == ({"general.architecture": "llama", "general.alignment": 256}, 256)

    def test_readable_by_gguf_package(self, model: Path, tmp_path: Path) -> None:
        reader = gguf.GGUFReader(written(model, tmp_path / "out.gguf"))
        assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F32", "Q8_0"}

    @pytest.mark.parametrize("threads", [1, 7])
    def test_result_is_independent_of_threads(self, model: Path, tmp_path: Path, threads: int) -> None:
        one = written(model, tmp_path / "1.gguf", threads=1)
        other = written(model, tmp_path / "7.gguf", threads=threads)
        assert one.read_bytes() == other.read_bytes()

    def test_copy_is_the_same_file(self, model: Path, tmp_path: Path) -> None:
        source = from_gguf(model)
        types = {name: tensor.type for name, tensor in source.tensors.items()}
        quantize(source, tmp_path / "out.gguf", types, encoder_factory=PLAIN)
        assert (tmp_path / "out.gguf").read_bytes() == model.read_bytes()

    def test_unsupported_types_are_copied(self, tmp_path: Path) -> None:
        data = np.arange(12, dtype=np.uint8)
        tensor = SourceTensor("ids", (3,), int(GGMLQuantizationType.I32), lambda: data)
        source = Source(Path("memory"), {}, {"ids": tensor}, ())
        quantize(source, tmp_path / "out.gguf", {"ids": tensor.type}, encoder_factory=PLAIN)
        assert np.array_equal(open_gguf(tmp_path / "out.gguf").tensors["ids"].data, data)

    def test_replace(self, model: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.gguf"
        out.write_bytes(b"old")
        with pytest.raises(UsageError, match="--force"):
            written(model, out)
        assert out.read_bytes() == b"old"
        written(model, out, options=REPLACE)
        assert open_gguf(out).tensors


class TestHooks:
    def test_every_matrix_has_its_own_importance(self, tmp_path: Path) -> None:
        """Record the importance that encoders receive; Q8_0 itself does not use it."""
        weights = np.arange(6, dtype=np.float32).repeat(32).reshape(6, 32)
        observed: dict[int, float] = {}

        class RecordingEncoder(Encoder):
            def encode(self, x: Any, importance: Any, out: Any) -> None:
                observed[int(x[0, 0])] = importance[0]
                super().encode(x, importance, out)

        experts = np.arange(6, dtype=np.float32).repeat(64).reshape(2, 3, 2, 32)
        source = from_arrays(experts=experts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("localinfer.quantization.quantize.Encoder", RecordingEncoder)
            encoder_factory = make_encoder_factory("normal", {"experts": weights})
            quantize(source, tmp_path / "out.gguf", {"experts": Q8_0}, encoder_factory=encoder_factory)
        assert observed == {number: number for number in range(6)}

    def test_observer_sees_all_rows(self, model: Path, tmp_path: Path) -> None:
        observed: dict[tuple[str, int, int], int] = {}
        lock = threading.Lock()

        def observe(matrix: Matrix, first: int, x: Any, out: Any) -> None:
            assert np.array_equal(out, gguf.quantize(x, GGMLQuantizationType.Q8_0))
            with lock:
                observed[matrix.tensor.name, matrix.number, first] = len(x)

        written(model, tmp_path / "out.gguf", observer=observe)
        rows = {
            number: sum(n for (name, of, _), n in observed.items() if "exps" in name and of == number)
            for number in range(3)
        }
        assert rows == {0: 700, 1: 700, 2: 700}
        assert not any("norm" in name for name, _, _ in observed)

    def test_progress_counts_weights_in_order(self, model: Path, tmp_path: Path) -> None:
        observed: list[tuple[str, int]] = []
        written(model, tmp_path / "out.gguf", progress=lambda tensor, done: observed.append((tensor.name, done)))
        last = dict(observed)
        source = from_gguf(model)
        assert list(last) == list(source.tensors)
        assert last == {name: tensor.n_elements for name, tensor in source.tensors.items()}


class TestBadValues:
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize(("shape", "position"), [((9, 64), (8, 63)), ((2, 5, 32), (1, 4, 0)), ((7,), (3,))])
    def test_error_names_tensor_and_index(
        self, tmp_path: Path, value: float, shape: tuple[int, ...], position: tuple[int, ...]
    ) -> None:
        values = np.ones(shape, np.float32)
        values[position] = value
        types = {"bad": F32 if len(shape) == 1 else Q8_0}
        with pytest.raises(LocalInferError) as caught:
            quantize(from_arrays(bad=values), tmp_path / "out.gguf", types, encoder_factory=PLAIN)
        assert str(caught.value) == f"memory: bad: value {value} at {list(position)}"
        assert names(tmp_path) == []

    def test_far_into_a_large_tensor(self, tmp_path: Path) -> None:
        values = np.ones(LARGE_SHAPE, np.float32)
        values[2, 699, 255] = np.nan
        with pytest.raises(LocalInferError, match=r"bad: value nan at \[2, 699, 255\]"):
            quantize(from_arrays(bad=values), tmp_path / "o", {"bad": Q8_0}, encoder_factory=PLAIN, threads=2)

    def test_too_large_for_f16(self, tmp_path: Path) -> None:
        values = np.ones((2, 64), np.float32)
        values[1, 40] = 1e30
        with pytest.raises(LocalInferError, match=r"bad: value 1e\+30 at \[1, 40\] is too large for F16$"):
            quantize(from_arrays(bad=values), tmp_path / "out.gguf", {"bad": F16}, encoder_factory=PLAIN)
        assert names(tmp_path) == []

    def test_too_large_for_the_scales(self, tmp_path: Path) -> None:
        values = np.ones((2, 64), np.float32)
        values[1, 40] = -1e30
        with pytest.warns(UserWarning, match=r"bad: value -1e\+30 at \[1, 40\] is too large for Q8_0: it became -8"):
            quantize(from_arrays(bad=values), tmp_path / "out.gguf", {"bad": Q8_0}, encoder_factory=PLAIN)
        tensor = gguf.GGUFReader(tmp_path / "out.gguf").tensors[0]
        assert np.isfinite(gguf.dequantize(tensor.data, GGMLQuantizationType.Q8_0)).all()

    def test_above_f16_range_in_other_type(self, tmp_path: Path) -> None:
        values = np.full((1, 32), 1e6, np.float32)
        quantize(from_arrays(good=values), tmp_path / "out.gguf", {"good": Q8_0}, encoder_factory=PLAIN)
        tensor = gguf.GGUFReader(tmp_path / "out.gguf").tensors[0]
        assert np.allclose(gguf.dequantize(tensor.data, GGMLQuantizationType.Q8_0), values, rtol=1e-3)

    def test_degenerate_rows(self, tmp_path: Path) -> None:
        values = np.stack([np.zeros(64), np.full(64, 3.0), np.full(64, 1e-42), [1e4] + [1e-4] * 63]).astype(np.float32)
        quantize(from_arrays(odd=values), tmp_path / "out.gguf", {"odd": Q8_0}, encoder_factory=PLAIN)
        tensor = gguf.GGUFReader(tmp_path / "out.gguf").tensors[0]
        assert np.isfinite(gguf.dequantize(tensor.data, GGMLQuantizationType.Q8_0)).all()


def same_path(path: Path) -> Path:
    return path


def hard_link(path: Path) -> Path:
    (path.parent / "hard").hardlink_to(path)
    return path.parent / "hard"


def symbolic_link(path: Path) -> Path:
    (path.parent / "soft").symlink_to(path)
    return path.parent / "soft"


@pytest.mark.parametrize("other_name", [same_path, hard_link, symbolic_link])
def test_source_is_never_overwritten(tmp_path: Path, other_name: Callable[[Path], Path]) -> None:
    path = tiny_llama(tmp_path / "m.gguf", type="F16", n_layer=1)
    before, out = path.read_bytes(), other_name(path)
    with pytest.raises(UsageError, match="is the input file"):
        written(path, out, options=REPLACE)
    assert path.read_bytes() == before


def test_truncated_source(tmp_path: Path) -> None:
    tensor = SourceTensor("short", (2, 32), F32, lambda: np.zeros(255, np.uint8))
    source = Source(Path("memory"), {}, {"short": tensor}, ())
    with pytest.raises(LocalInferError, match="short: 255 bytes were read, 256 are needed"):
        quantize(source, tmp_path / "out.gguf", {"short": Q8_0}, encoder_factory=PLAIN)
    assert names(tmp_path) == []


class TestSplit:
    @pytest.fixture
    def split_paths(self, tmp_path: Path) -> list[Path]:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
        for number in range(5):
            writer.add_tensor(f"t{number}.weight", np.full((2, 32), number, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return sorted(tmp_path.glob("m-*.gguf"))

    def test_split_source_to_one_file(self, split_paths: list[Path], tmp_path: Path) -> None:
        out = open_gguf(written(split_paths[0], tmp_path / "out.gguf"))
        assert [tensor.type_name for tensor in out.tensors.values()] == ["Q8_0"] * 5
        assert not [key for key in out.metadata if key.startswith("split")]

    @pytest.mark.parametrize("name", ["out.gguf", "out", "out-00001-of-00009.gguf"])
    def test_keep_split(self, split_paths: list[Path], tmp_path: Path, name: str) -> None:
        written(split_paths[0], tmp_path / name, options=OutputOptions(keep_split=True))
        new = sorted(tmp_path.glob("out*"))
        assert [path.name for path in new] == [f"out-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
        back = from_gguf(new[2])
        assert {name: tensor.split_index for name, tensor in back.tensors.items()} == {
            name: tensor.split_index for name, tensor in from_gguf(split_paths[0]).tensors.items()
        }
        assert back.tensors["t4.weight"].type_name == "Q8_0"

    def test_source_is_never_overwritten(self, split_paths: list[Path], tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is the input file"):
            written(split_paths[0], tmp_path / "m.gguf", options=OutputOptions(replace=True, keep_split=True))


class TestMaliciousSources:
    def test_rejected_files(self, tmp_path: Path) -> None:
        for attack in malicious_files.REJECTED:
            (tmp_path / "bad.gguf").write_bytes(attack.content)
            with pytest.raises(LocalInferError):
                from_gguf(tmp_path / "bad.gguf")

    def test_accepted_files_are_copied(self, tmp_path: Path) -> None:
        for unusual in malicious_files.ACCEPTED:
            (tmp_path / "odd.gguf").write_bytes(unusual.content)
            source = from_gguf(tmp_path / "odd.gguf")
            types = {name: tensor.type for name, tensor in source.tensors.items()}
            quantize(source, tmp_path / "out.gguf", types, encoder_factory=PLAIN, options=REPLACE)
            copied = from_gguf(tmp_path / "out.gguf")
            assert copied.fields == source.fields, unusual.name
            assert [tensor.load().tobytes() for tensor in copied.tensors.values()] == [
                tensor.load().tobytes() for tensor in source.tensors.values()
            ], unusual.name

    def test_any_byte_of_the_header(self, tmp_path: Path) -> None:
        """A file with any modified header byte is either copied or rejected."""
        content = bytearray(malicious_files.VALID)
        path, out = tmp_path / "m.gguf", tmp_path / "out.gguf"
        path.write_bytes(content)
        end = open_gguf(path).data_offset
        for position in range(0, end, 3):
            changed = content.copy()
            changed[position] ^= 0x41
            path.write_bytes(changed)
            with contextlib.suppress(LocalInferError):
                source = from_gguf(path)
                types = {name: tensor.type for name, tensor in source.tensors.items()}
                quantize(source, out, types, encoder_factory=PLAIN, options=REPLACE)
                assert from_gguf(out).fields == source.fields
