"""Which file a name means: llama.cpp's choice, among names as repositories have them."""

import pytest

from localinfer.errors import UsageError
from localinfer.models.choice import chosen, first_file, means, models_among, quant_of, wanted, what_there_is

ONE_OF_EACH = ["README.md", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"]
SPLIT = [f"Q4_K_M/m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("paths", "quant", "expected"),
    [
        (ONE_OF_EACH, "", "m-Q4_K_M.gguf"),
        (ONE_OF_EACH[:2] + ONE_OF_EACH[3:], "", "m-Q8_0.gguf"),
        (ONE_OF_EACH[:2], "", "m-F16.gguf"),
        (["b.gguf", "a.gguf"], "", "b.gguf"),
        (ONE_OF_EACH, "Q8_0", "m-Q8_0.gguf"),
        (ONE_OF_EACH, "q8_0", "m-Q8_0.gguf"),
        (ONE_OF_EACH, "f16", "m-F16.gguf"),
        (ONE_OF_EACH, "Q2_K", ""),
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


def test_split_models_are_whole_or_not_there() -> None:
    what = wanted("o/r:q4_k_m", "hf")
    assert chosen([*reversed(SPLIT), "x.gguf"], what) == SPLIT
    assert chosen(SPLIT[:2], what) == []
    assert chosen(SPLIT, wanted(f"o/r/{SPLIT[0]}", "hf")) == SPLIT
    assert chosen(SPLIT, wanted(f"o/r/{SPLIT[1]}", "hf")) == SPLIT


def test_file_by_its_name() -> None:
    assert chosen(ONE_OF_EACH, wanted("o/r/mmproj-m-Q8_0.gguf", "hf")) == ["mmproj-m-Q8_0.gguf"]
    assert chosen(ONE_OF_EACH, wanted("o/r/m-Q8.gguf", "hf")) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("o/r", ("o/r", "", "")),
        ("o-1/r.x_y-GGUF:Q4_K_M", ("o-1/r.x_y-GGUF", "Q4_K_M", "")),
        ("o/r/a b/m.gguf", ("o/r", "", "a b/m.gguf")),
    ],
)
def test_names(name: str, expected: tuple[str, str, str]) -> None:
    assert wanted(name, "hf") == expected


@pytest.mark.parametrize(
    "name",
    ["", "o", "o/", "/r", "../r", "o/r:", "o/r:a/b", "o/r/m", "o/..", "o/r/../m.gguf", "o/r/..\\m.gguf", "-o/r"],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="must be hf:OWNER/REPO"):
        wanted(name, "hf")


def test_names_of_what_is_there() -> None:
    paths = ["a-Q4_0.gguf", "b-Q4_0.gguf", "c.gguf", *SPLIT, "d-Q8_0-00001-of-00002.gguf", "mmproj-x-F16.gguf"]
    models = models_among(paths, "o/r")
    assert models == {
        "o/r:Q4_0": ["a-Q4_0.gguf"],
        "o/r/b-Q4_0.gguf": ["b-Q4_0.gguf"],
        "o/r/c.gguf": ["c.gguf"],
        "o/r:Q4_K_M": SPLIT,
    }
    for name, files in models.items():
        assert chosen(paths, wanted(name, "hf")) == files
    assert what_there_is(paths) == ["Q4_0", "c.gguf", "Q4_K_M", "Q8_0"]


def test_quant_of_a_file() -> None:
    assert [quant_of(path) for path in ("m-q4_k_m.gguf", "m.Q8_0.gguf", SPLIT[1], "m.gguf")] == [
        "Q4_K_M", "Q8_0", "Q4_K_M", "",
    ]  # fmt: skip


def test_files_that_a_name_may_mean() -> None:
    assert means(wanted("o/r", "hf"), "anything.gguf")
    assert means(wanted("o/r:q8_0", "hf"), "m-Q8_0.gguf")
    assert not means(wanted("o/r:q8_0", "hf"), "m-Q4_0.gguf")
    assert means(wanted(f"o/r/{SPLIT[0]}", "hf"), SPLIT[2])
    assert not means(wanted("o/r/m.gguf", "hf"), SPLIT[2])
