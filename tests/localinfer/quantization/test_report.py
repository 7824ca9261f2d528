"""The quantization report: metrics per tensor, compared with the gguf package, and a self-contained page."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny import tiny_llama

from cli import __main__
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.imatrix_file import Entry, Imatrix, write_imatrix
from localinfer.quantization.plan import Request, make_plan
from localinfer.quantization.quantize import make_encoder_factory, quantize
from localinfer.quantization.report import ErrorSums, Report, error_metrics
from localinfer.quantization.report_page import logarithmic_axis_ticks, render_page

VOID = {"meta", "br"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in F16, with one expert tensor, and an importance matrix of one tensor."""
    folder = tmp_path_factory.mktemp("report")
    experts = np.random.default_rng(1).standard_normal((3, 700, 256), np.float32)  # several slices each
    tiny_llama(folder / "m.gguf", type="F16", **{"blk.0.ffn_up_exps.weight": experts})
    weights = np.random.default_rng(2).random((1, 256), np.float32)
    write_imatrix(folder / "i.gguf", Imatrix({"blk.0.attn_q.weight": Entry(weights, np.array([1], np.float32))}))
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    source = from_gguf(folder / "m.gguf")
    plan = make_plan(source, Request("Q8_0", imatrix=folder / "i.gguf"))
    actual = Report(plan)
    encoder_factory = make_encoder_factory("fast", {})  # for blocks equal to the gguf package's
    quantize(source, folder / "out.gguf", plan.types, encoder_factory=encoder_factory, threads=2, observer=actual)
    return actual.to_dict()


# --- metrics ---


def test_metrics_of_three_weights() -> None:
    x, y = np.array([[3.0, -4.0, 0.0]], np.float32), np.array([[3.0, -3.0, 2.0]], np.float32)
    actual = error_metrics(ErrorSums.of(x, y, np.array([1, 2, 0], np.float32)), weighted=True)
    assert actual == {
        "rmse": pytest.approx(math.sqrt(5 / 3)),
        "largest_error": 2,
        "relative_error": pytest.approx(math.sqrt(5 / 25)),
        "weighted_error": pytest.approx(math.sqrt(2 / 41)),
        "cosine": pytest.approx(21 / math.sqrt(25 * 22)),
        "sqnr": pytest.approx(10 * math.log10(5)),
    }
    halves = ErrorSums.of(x[:, :1], y[:, :1], None) + ErrorSums.of(x[:, 1:], y[:, 1:], None)
    assert error_metrics(halves, weighted=False) == actual | {"weighted_error": None}


def test_undefined_metrics() -> None:
    zeros = np.zeros((1, 4), np.float32)
    nothing = {"relative_error": None, "weighted_error": None, "cosine": None, "sqnr": None}
    assert error_metrics(ErrorSums.of(zeros, zeros, None), weighted=False) == {"rmse": 0, "largest_error": 0} | nothing
    assert error_metrics(None, weighted=True) == error_metrics(ErrorSums(), weighted=True) == {}


def test_metrics_of_every_tensor(folder: Path, report: dict[str, Any]) -> None:
    old, new = from_gguf(folder / "m.gguf"), from_gguf(folder / "out.gguf")
    assert [each["name"] for each in report["tensors"]] == list(old.tensors)
    for each in report["tensors"]:
        tensor, result = old.tensors[each["name"]], new.tensors[each["name"]]
        assert (each["old_type"], each["new_type"]) == (tensor.type_name, result.type_name)
        assert (each["nbytes"], each["bits"]) == (result.nbytes, 8 * result.nbytes / result.n_elements)
        if tensor.type == result.type:
            assert each["rmse"] is None
            continue
        x, y = (
            gguf.dequantize(one.load().reshape(-1, one.nbytes * one.shape[-1] // one.n_elements),
                            GGMLQuantizationType(one.type)).reshape(-1).astype(np.float64)
            for one in (tensor, result)
        )  # fmt: skip
        assert each["rmse"] == pytest.approx(np.sqrt(np.mean((x - y) ** 2)))
        assert each["largest_error"] == pytest.approx(abs(x - y).max())
        assert each["relative_error"] == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(x))
        assert each["cosine"] == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-12)
        assert each["sqnr"] == pytest.approx(10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()))
    assert report["nbytes"] == sum(tensor.nbytes for tensor in new.tensors.values())


def test_weighted_error_needs_importance(report: dict[str, Any]) -> None:
    weighted = {each["name"]: each["weighted_error"] for each in report["tensors"] if each["weighted_error"]}
    assert list(weighted) == ["blk.0.attn_q.weight"]
    assert weighted["blk.0.attn_q.weight"] == pytest.approx(0.005, abs=0.003)


def test_kind_and_layer(report: dict[str, Any]) -> None:
    layers_and_kinds = {each["name"]: (each["layer"], each["kind"]) for each in report["tensors"]}
    assert layers_and_kinds["blk.1.ffn_down.weight"] == (1, "ffn_down")
    assert layers_and_kinds["token_embd.weight"] == (None, "token_embd")


# --- the page ---


class Elements(HTMLParser):
    """Checks that elements are closed; collects the text, and the number of each element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.texts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_page_shows_every_tensor(report: dict[str, Any]) -> None:
    text = render_page(report)
    actual = Elements(text)
    in_layers = [each for each in report["tensors"] if each["layer"] is not None and len(each["shape"]) > 1]
    assert actual.counts["tr"] == 1 + len(report["tensors"])
    assert actual.counts["rect"] == len(in_layers)
    assert actual.counts["circle"] == sum(each["relative_error"] is not None for each in in_layers)
    assert actual.counts["polyline"] == len({each["kind"] for each in in_layers})
    assert not re.search(r"https?:|src=|@import|url\(", text)


def test_names_are_escaped(report: dict[str, Any]) -> None:
    unusual = report["tensors"][-1] | {"name": "blk.0.<script>alert(1)</script>", "kind": "<b>&"}
    text = render_page(report | {"source": "<i>.gguf", "tensors": [*report["tensors"], unusual]})
    actual = Elements(text)
    assert actual.counts["script"] == 1
    assert "b" not in actual.counts
    assert actual.counts["i"] == render_page(report).count("<i ") + 1  # its entry in the legend


def test_page_without_errors_or_layers(report: dict[str, Any]) -> None:
    copied = [each | {"relative_error": None, "cosine": None, "sqnr": None} for each in report["tensors"]]
    assert "polyline" not in Elements(render_page(report | {"tensors": copied})).counts
    assert "svg" not in Elements(render_page(report | {"tensors": copied[:1]})).counts


@pytest.mark.parametrize(
    ("low", "high", "numbers"),
    [
        (0.03, 0.06, [0.02, 0.05, 0.1]),
        (0.02, 0.05, [0.02, 0.05, 0.1]),
        (0.9, 0.9, [0.5, 1.0]),
        (2e-4, 3e-4, [2e-4, 5e-4]),
    ],
)
def test_axis_ticks(low: float, high: float, numbers: list[float]) -> None:
    assert logarithmic_axis_ticks(low, high) == pytest.approx(numbers)


# --- the command ---


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["quantize", str(folder / "m.gguf"), str(tmp_path / "out.gguf"), "Q8_0", "1", "--force", "--report"]
    assert __main__.run([*command, str(tmp_path / "r.json")]) == 0
    actual = json.loads((tmp_path / "r.json").read_text())
    assert actual["tensors"][0]["rmse"] > 0
    assert __main__.run([*command, str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_text() == render_page(actual)
    assert __main__.run([*command, str(tmp_path / "r.pdf")]) == 2
    assert "--report: must end in .html or .json" in capsys.readouterr().err
