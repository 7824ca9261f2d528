"""Selection of files by llama.cpp's rules, among typical file names of repositories."""

import pytest

from localinfer.errors import UsageError
from localinfer.hub.file_selection import (
    available_quants,
    first_file,
    group_by_model,
    matches,
    parse_reference,
    quant_of,
    select_files,
)

TYPICAL_FILES = ["README.md", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"]
SPLIT = [f"Q4_K_M/m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("paths", "quant", "expected"),
    [
        (TYPICAL_FILES, "", "m-Q4_K_M.gguf"),
        (TYPICAL_FILES[:2] + TYPICAL_FILES[3:], "", "m-Q8_0.gguf"),
        (TYPICAL_FILES[:2], "", "m-F16.gguf"),
        (["b.gguf", "a.gguf"], "", "b.gguf"),
        (TYPICAL_FILES, "Q8_0", "m-Q8_0.gguf"),
        (TYPICAL_FILES, "q8_0", "m-Q8_0.gguf"),
        (TYPICAL_FILES, "f16", "m-F16.gguf"),
        (TYPICAL_FILES, "Q2_K", ""),
        (["m-Q4_K_M.gguf.part", "m.Q4_K.gguf"], "", "m.Q4_K.gguf"),
        (["m-Q4_K_M_L.gguf", "m-Q4_K_M.gguf"], "", "m-Q4_K_M.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        (["mmproj-Q4_K_M.gguf", "imatrix-Q4_K_M.gguf", "mtp-Q4_K_M.gguf", "m-Q6_K.gguf"], "", "m-Q6_K.gguf"),
        (["mmproj-F16.gguf", "imatrix.gguf"], "", ""),
        (list(reversed(SPLIT)), "", SPLIT[0]),
        (["m-Q4.K.M.gguf"], "Q4.K.M", "m-Q4.K.M.gguf"),
        (["m-Q4xKxM.gguf"], "Q4.K.M", ""),
        ([], "", ""),
    ],
)
def test_first_file(paths: list[str], quant: str, expected: str) -> None:
    assert first_file(paths, quant) == expected


def test_incomplete_split_models_are_ignored() -> None:
    what = parse_reference("o/r:q4_k_m", "hf")
    assert select_files([*reversed(SPLIT), "x.gguf"], what) == SPLIT
    assert select_files(SPLIT[:2], what) == []
    assert select_files(SPLIT, parse_reference(f"o/r/{SPLIT[0]}", "hf")) == SPLIT
    assert select_files(SPLIT, parse_reference(f"o/r/{SPLIT[1]}", "hf")) == SPLIT


def test_select_by_file_name() -> None:
    assert select_files(TYPICAL_FILES, parse_reference("o/r/mmproj-m-Q8_0.gguf", "hf")) == ["mmproj-m-Q8_0.gguf"]
    assert select_files(TYPICAL_FILES, parse_reference("o/r/m-Q8.gguf", "hf")) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("o/r", ("o/r", "", "")),
        ("o-1/r.x_y-GGUF:Q4_K_M", ("o-1/r.x_y-GGUF", "Q4_K_M", "")),
        ("o/r/a b/m.gguf", ("o/r", "", "a b/m.gguf")),
    ],
)
def test_parse_reference(name: str, expected: tuple[str, str, str]) -> None:
    assert parse_reference(name, "hf") == expected


@pytest.mark.parametrize(
    "name",
    ["", "o", "o/", "/r", "../r", "o/r:", "o/r:a/b", "o/r/m", "o/..", "o/r/../m.gguf", "o/r/..\\m.gguf", "-o/r"],
)
def test_invalid_reference(name: str) -> None:
    with pytest.raises(UsageError, match="must be hf:OWNER/REPO"):
        parse_reference(name, "hf")


def test_group_by_model() -> None:
    paths = ["a-Q4_0.gguf", "b-Q4_0.gguf", "c.gguf", *SPLIT, "d-Q8_0-00001-of-00002.gguf", "mmproj-x-F16.gguf"]
    models = group_by_model(paths, "o/r")
    assert models == {
        "o/r:Q4_0": ["a-Q4_0.gguf"],
        "o/r/b-Q4_0.gguf": ["b-Q4_0.gguf"],
        "o/r/c.gguf": ["c.gguf"],
        "o/r:Q4_K_M": SPLIT,
    }
    for name, files in models.items():
        assert select_files(paths, parse_reference(name, "hf")) == files
    assert available_quants(paths) == ["Q4_0", "c.gguf", "Q4_K_M", "Q8_0"]


def test_quant_of() -> None:
    assert [quant_of(path) for path in ("m-q4_k_m.gguf", "m.Q8_0.gguf", SPLIT[1], "m.gguf")] == [
        "Q4_K_M", "Q8_0", "Q4_K_M", "",
    ]  # fmt: skip


def test_matches() -> None:
    assert matches(parse_reference("o/r", "hf"), "anything.gguf")
    assert matches(parse_reference("o/r:q8_0", "hf"), "m-Q8_0.gguf")
    assert not matches(parse_reference("o/r:q8_0", "hf"), "m-Q4_0.gguf")
    assert matches(parse_reference(f"o/r/{SPLIT[0]}", "hf"), SPLIT[2])
    assert not matches(parse_reference("o/r/m.gguf", "hf"), SPLIT[2])
