"""Metadata values keep the file's bytes and equal what the `gguf` package writes."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType

from localinfer.gguf.source import Field, SourceTensor


def as_gguf_writes(path: Path, value: object, kind: GGUFValueType, element: GGUFValueType | None = None) -> Field:
    """Return a value as the gguf package's writer encodes it in a file."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_key_value("key", value, kind, element)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    content = path.read_bytes()
    start = content.index(b"key") + 3
    return Field(int.from_bytes(content[start : start + 4], "little"), content[start + 4 :])


@pytest.mark.parametrize(
    ("field", "value", "kind", "element"),
    [
        (Field.text("héllo"), "héllo", "STRING", None),
        (Field.flag(True), True, "BOOL", None),
        (Field.uint32(7), 7, "UINT32", None),
        (Field.float32(0.1), 0.1, "FLOAT32", None),
        (Field.number(-3, "<i8"), -3, "INT64", None),
        (Field.numbers(np.array([1, -2], np.int32)), [1, -2], "ARRAY", "INT32"),
        (Field.numbers(np.array([0.5], ">f4")), [0.5], "ARRAY", "FLOAT32"),
        (Field.flags([True, False]), [True, False], "ARRAY", "BOOL"),
        (Field.texts(["a", "bc", b"\xff"]), [b"a", b"bc", b"\xff"], "ARRAY", "STRING"),
    ],
)
def test_fields_are_what_the_package_writes(
    tmp_path: Path, field: Field, value: object, kind: str, element: str | None
) -> None:
    expected = as_gguf_writes(tmp_path / "m", value, GGUFValueType[kind], GGUFValueType[element] if element else None)
    assert field == expected


def test_values_round_trip() -> None:
    assert Field.text("é").value == "é".encode()
    assert Field.flag(True).value is True
    assert Field.flag(False).value is False
    assert Field.number(-5, "<i2").value == -5
    assert Field.float32(0.1).value == np.float32(0.1)
    assert np.array_equal(Field.numbers(np.arange(3, dtype=np.uint16)).value, [0, 1, 2])  # type: ignore[arg-type]
    assert Field.texts(["a"]).value is None


def test_number_out_of_range() -> None:
    with pytest.raises(OverflowError):
        Field.uint32(1 << 32)


def test_tensor_sizes() -> None:
    tensor = SourceTensor("x", (2, 3, 64), 8, lambda: np.zeros(408, np.uint8))
    assert (tensor.type_name, tensor.n_elements, tensor.nbytes) == ("Q8_0", 384, 408)
