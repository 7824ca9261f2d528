"""The syntax of metadata values on the command line."""

import re

import pytest

from localinfer import options
from localinfer.errors import UsageError
from localinfer.gguf.source import Field
from localinfer.options.metadata_values import parse_override, parse_typed


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("a=int:5", Field.uint32(5)),
        ("a=int:-5", Field.number(-5, "<i4")),
        ("a=float:0.1", Field.float32(0.1)),
        ("a=f64:0.1", Field.number(0.1, "<f8")),
        ("a=u8:255", Field.number(255, "<u1")),
        ("a=i64:-9223372036854775808", Field.number(-(2**63), "<i8")),
        ("a=bool:False", Field.flag(False)),
        ("a=bool:1", Field.flag(True)),
        ("a=str:x=y:z", Field.text("x=y:z")),
        ("a=str:", Field.text("")),
    ],
)
def test_values(text: str, field: Field) -> None:
    key, value = parse_override(text)
    assert (key, Field.typed(value)) == ("a", field)


@pytest.mark.parametrize("text", ["", "a", "a=5", "=int:5", "a=i:5", "ä=int:5"])
def test_invalid_syntax(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be (KEY=)?TYPE:VALUE with TYPE one of str, bool, int, float, u8"):
        parse_override(text)


@pytest.mark.parametrize(
    "text", ["str:\udcff", "float:x", "float:1e39", "u8:256", "u8:-1", "i8:-129", "int:4294967296", "bool:yes"]
)
def test_invalid_values(text: str) -> None:
    kind = text.partition(":")[0]
    with pytest.raises(ValueError, match=re.escape(f"is not a valid {kind}")):
        parse_typed(text)


@pytest.mark.parametrize("key", ["general.alignment", "split.count", "split.no"])
def test_what_decides_positions_is_fixed(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} determines the positions of the tensors"):
        parse_override(f"{key}=int:1")


def test_several_in_one_text() -> None:
    """As in llama.cpp, separated by commas; others belong to a text."""
    flag = options.FLAGS["override_kv"]
    assert flag.parse("a=int:5,b.c=str:x, y=z,d=bool:true") == ("a=int:5", "b.c=str:x, y=z", "d=bool:true")


def test_mappings_of_python() -> None:
    given = {"a": True, "b": 5, "c": 0.5, "d": "x"}
    layer = options.from_keywords({"kv_overrides": given})
    assert layer == {"override_kv": ("a=bool:True", "b=int:5", "c=float:0.5", "d=str:x")}
    assert dict(map(parse_override, layer["override_kv"])).keys() == given.keys()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^kv_overrides: must be TYPE:VALUE"):
        options.from_keywords({"kv_overrides": {"a": None}})
