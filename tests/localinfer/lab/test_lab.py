"""The lab: its file, its choices of types, its page, and what is wrong with a damaged file."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from locations import DATA
from tiny import tiny_llama

from cli import __main__
from localinfer.errors import LocalInferError
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.reader import open_gguf
from localinfer.lab.frontier import SizeCurve
from localinfer.lab.lab_file import read_lab
from localinfer.lab.lab_page import render_lab_page
from localinfer.lab.run import read_unfinished
from localinfer.lab.tensor_sensitivity import (
    TensorSensitivity,
    derive_divergences,
    with_unused_tensors,
)
from localinfer.quantization.plan import Request, make_plan

TEXT = DATA / "varied.txt"
ARGUMENTS = "-f", TEXT, "-c", "32"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F32", n_layer=2)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = __main__.run([*map(str, arguments)])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def lab_file(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lab") / "lab.json"
    assert __main__.run(["lab", str(model), *map(str, ARGUMENTS), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def content(lab_file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab_file.read_text(encoding="utf-8"))
    return found


class Parser(HTMLParser):
    """Checks that all elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# --- derivation ---


def test_derived_divergences_scale_with_the_nearest_error() -> None:
    errors = {"A": 0.4, "B": 0.1, "C": 0.02, "D": 0.01, "E": 0.0}
    assert derive_divergences({"B": 0.5, "D": 0.04}, errors) == pytest.approx(
        {"A": 2.0, "B": 0.5, "C": 0.08, "D": 0.04, "E": 0.0}
    )


def test_tensors_that_predictions_do_not_use_are_like_the_median() -> None:
    def tensor(name: str, divergence: float) -> TensorSensitivity:
        return TensorSensitivity(name, {"A": 1.0}, {"A": 0.5}, {"A": divergence}, {"A": 0.0})

    found = with_unused_tensors({name: tensor(name, value) for name, value in (("a", 1.0), ("b", 0.0), ("c", 3.0))})
    assert (found["a"], found["c"]) == (tensor("a", 1.0), tensor("c", 3.0))
    assert (found["b"].divergences, found["b"].measured) == ({"A": 2.0}, {})


# --- choice ---


def test_frontier(model: Path, content: dict[str, Any]) -> None:
    """Sizes and divergences are those of the types, and the frontier lies below all recipes."""
    divergences = {
        name: {kind: each["kl_divergence"] for kind, each in tensor["types"].items()}
        for name, tensor in content["tensors"].items()
    }
    curve = SizeCurve(make_plan(from_gguf(model), Request("Q8_0")), divergences)
    sizes = [point["size"] for point in content["frontier"]]
    values = [point["kl_divergence"] for point in content["frontier"]]
    assert sizes == sorted(sizes)
    assert values == sorted(values, reverse=True)
    for point in content["frontier"][::10]:
        assert point["kl_divergence"] == pytest.approx(
            sum(divergences[name].get(kind, 0.0) for name, kind in point["types"].items())
        )
    assert {"Q3_K_M", "IQ4_XS", "Q4_K_M", "Q6_K", "Q8_0"} <= content["recipes"].keys()
    assert not {"F16", "IQ2_M", "MXFP4_MOE"} & content["recipes"].keys()  # no importance matrix
    for name, recipe in content["recipes"].items():
        best = curve.best(recipe["size"])
        assert best
        assert best.size <= recipe["size"]
        assert best.divergence <= recipe["kl_divergence"] + 1e-12, name
    assert curve.best(10) is None


def test_predictions_are_close_to_what_is_measured(content: dict[str, Any]) -> None:
    for name in ("Q3_K_M", "IQ4_XS", "Q4_K_M"):
        for point in content["recipes"][name], content["recipes"][name]["best"]:
            assert point["kl_divergence"] == pytest.approx(point["measured"]["kl_divergence"], rel=0.3)
        better = content["recipes"][name]["best"]["measured"]["kl_divergence"]
        assert better < 0.8 * content["recipes"][name]["measured"]["kl_divergence"]


# --- the command ---


def test_sizes_are_those_of_files(run: Run, model: Path, lab_file: Path, content: dict[str, Any]) -> None:
    assert run("quantize", model, "recipe.gguf", "Q4_K_M")[0] == 0
    assert Path("recipe.gguf").stat().st_size == content["recipes"]["Q4_K_M"]["size"]
    assert run("quantize", model, "out.gguf", "--recipe", lab_file)[0] == 0
    assert Path("out.gguf").stat().st_size == content["size"] <= content["recipes"]["Q4_K_M"]["size"]
    types = {name: each.type_name for name, each in open_gguf(Path("out.gguf")).tensors.items()}
    assert {name: types[name] for name in content["types"]} == content["types"]
    code, _, err = run("quantize", model, "same.gguf", "--target-size", content["size"], "--lab", lab_file)
    assert code == 0, err
    assert "measured" not in err
    assert f"predicted KL divergence: {content['kl_divergence']:.4f} nats per token" in err
    assert Path("same.gguf").read_bytes() == Path("out.gguf").read_bytes()
    by_lab = "--target-bpw", "6", "--lab", lab_file
    code, _, err = run("quantize", model, "large.gguf", *by_lab, "--tensor-type", "_q=q4_1")
    assert code == 0, err
    assert "predicted" not in err  # the divergence of Q4_1 is unknown


def test_calibration_with_the_types_of_a_lab(run: Run, model: Path, lab_file: Path, content: dict[str, Any]) -> None:
    """The calibration is written into the metadata, so the target size has room for it."""
    size = content["size"] + 1000
    by_lab = "quantize", model, "plain.gguf", "--target-size", size, "--lab", lab_file
    assert run(*by_lab)[0] == 0
    code, _, err = run(*by_lab[:2], "out.gguf", *by_lab[3:], "--calibrate", TEXT, "--calibrate-chunks", 2)
    assert code == 0, err
    assert "predicted KL divergence" in err
    assert Path("out.gguf").stat().st_size <= size
    plain, calibrated = (open_gguf(Path(name)).tensors for name in ("plain.gguf", "out.gguf"))
    types = [{name: each.type_name for name, each in tensors.items()} for tensors in (plain, calibrated)]
    assert types[0] == types[1]
    matrix = "blk.1.ffn_down.weight"
    assert calibrated[matrix].data.tobytes() != plain[matrix].data.tobytes()


def test_tables_page_and_interrupted_runs(
    run: Run, model: Path, lab_file: Path, content: dict[str, Any], tmp_path: Path
) -> None:
    known = {**content, "tensors": dict([*content["tensors"].items()][:5])}
    (tmp_path / ".lab.json.unfinished").write_text(json.dumps(known), encoding="utf-8")
    code, out, err = run("lab", model, *ARGUMENTS, "--target-size", "1MB")
    assert code == 0, err
    assert "resuming an interrupted measurement: 5 tensors are known" in err
    assert re.search(r"^10 tensors: about \d+:\d\d", err, re.MULTILINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab.html", "lab.json"]
    again = json.loads((tmp_path / "lab.json").read_text(encoding="utf-8"))
    assert again["tensors"] == content["tensors"]
    assert again["size"] <= 1_000_000
    row = r"^  blk\.1\.ffn_down\.weight +Q4_0 +\d\.\d\d % +\d\.\d\d % +\S+ \+/- \S+ +\w+$"
    assert re.search(row, out, re.MULTILINE)
    assert re.search(r"^  Q4_K_M +\d\.\d +0\.\d{4} +0\.\d{4} \+/- 0\.\d{4} +0\.\d{4} +0\.\d{4} \+/-", out, re.MULTILINE)
    page = (tmp_path / "lab.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "http" not in page
    Parser().feed(page)


def test_names_on_the_page_are_escaped(content: dict[str, Any]) -> None:
    setting = {**content["setting"], "source": "<script>alert(1)</script>"}
    assert "<script>alert" not in render_lab_page({**content, "setting": setting})


def test_unfinished_measurements_of_other_settings_are_ignored(content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / ".lab.json.unfinished"
    assert read_unfinished(path, content["setting"]) == {}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert read_unfinished(path, content["setting"]).keys() == content["tensors"].keys()
    assert read_unfinished(path, {**content["setting"], "chunks": 9}) == {}
    path.write_text("{", encoding="utf-8")
    assert read_unfinished(path, content["setting"]) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["missing.gguf", "-f", TEXT], 3, "missing.gguf: No such file or directory"),
        (["MODEL"], 2, "--file"),
        (["MODEL", "-f", "missing.txt"], 1, "missing.txt: No such file or directory"),
        (["MODEL", "-f", TEXT, "-o", "lab.txt"], 2, "--output: must end in .json, not lab.txt"),
        (["MODEL", "-f", TEXT, "-o", "missing/lab.json"], 2, "--output: missing/lab.json: No such file or directory"),
        (["MODEL", "-f", TEXT, "--effort", "max"], 2, "--effort: must be one of fast, normal, not max"),
        (["MODEL", "-f", TEXT, "--target-size", "much"], 2, "--target-size: must be a number of bytes"),
        (["MODEL", *ARGUMENTS, "--target-size", "99"], 2, "--target-size 99: the smallest possible file has"),
        (["MODEL", "-f", TEXT, "-c", "4096"], 2, "--file: a text of "),
    ],
)
def test_bad_arguments(run: Run, model: Path, arguments: list[Any], code: int, problem: str, tmp_path: Path) -> None:
    actual = run("lab", *(model if each == "MODEL" else each for each in arguments))
    assert actual[:2] == (code, "")
    assert problem in actual[2]
    assert len(actual[2].splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# --- damaged files ---


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "x"}, "format: must be 'localinfer lab': this is not a file of `localinfer lab`"),
        ({"version": 2}, "version: must be 1, not 2"),
        ({"tensors": {}}, "tensors: must be an object with the sensitivities of tensors"),
        ({"setting": 1}, "setting: must be an object"),
        ({"tensors": {"a": {"types": {}}}}, "a: must be an object with its types"),
        ({"tensors": {"a": {"types": {"Q": {}}}}}, "a: Q: is not a tensor type with its figures"),
        ({"tensors": {"a": {"types": {"Q4_0": {}}}}}, "a: Q4_0: weight_error: must be a number from 0 on, not None"),
        (
            {"tensors": {"a": {"types": {"Q4_0": {"weight_error": 1, "output_error": 1, "kl_divergence": -1}}}}},
            "a: Q4_0: kl_divergence: must be a number from 0 on, not -1",
        ),
    ],
)
def test_damaged_lab_file(content: dict[str, Any], tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = tmp_path / "lab.json"
    path.write_text(json.dumps({**content, **change}), encoding="utf-8")
    with pytest.raises(LocalInferError, match=re.escape(f"{path}: {problem}")):
        read_lab(path)


def test_lab_of_another_model(run: Run, lab_file: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", type="F16", n_layer=3)
    code, _, err = run("quantize", other, "--target-bpw", "5", "--lab", lab_file)
    assert (code, err) == (2, f"error: {other}: blk.2.attn_q.weight: was not measured in this lab file\n")
