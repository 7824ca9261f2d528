"""Parsers of option values that have a syntax of their own: sampler chains, logit biases and speculation types."""

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from localinfer.options.flag import format_value

SAMPLERS = {  # llama.cpp's names, and the letters of --sampler-seq
    "penalties": "e", "dry": "d", "top_n_sigma": "s", "top_k": "k", "typ_p": "y", "top_p": "p", "min_p": "m",
    "xtc": "x", "temperature": "t", "adaptive_p": "a",
}  # fmt: skip
DEFAULT_SAMPLERS = tuple(name for name in SAMPLERS if name != "adaptive_p")
SAMPLER_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
LOGIT_BIAS = re.compile(r"\s*(\d+)\s*([+-].+)")
MAX_SCALE = 1e30  # of an adapter; its products with other numbers fit in float32
NO_ADAPTERS = "none"  # the value of --lora-scales with which all adapters have the scale 0
ADAPTER_SCALE = re.compile(r"\s*(\d{1,6})\s*(?:=|(?=[+-]))\s*(.+)")
LAYER_RANGE = re.compile(r"\s*(\d{1,6})[\s,]+(\d{1,6})\s*")

SPECULATION_TYPES = {  # values of --spec-type, as in llama.cpp -> the draft method that implements each here
    "none": "", "ngram": "ngram", "ngram-simple": "ngram", "ngram-map-k": "ngram", "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram", "ngram-cache": "ngram",
    "draft-simple": "draft", "draft-eagle3": "head", "draft-mtp": "head", "draft-dflash": "head",
    "draft-dspark": "head",
}  # fmt: skip

BYTE_UNITS = {"": 1, "b": 1} | {
    letter + ending: base**power
    for ending, base in (("", 1000), ("b", 1000), ("ib", 1024))
    for power, letter in enumerate("kmgt", 1)
}


def parse_bytes(text: str) -> int:
    """Return the bytes of 700MB, 0.7G, 650MiB or a plain number. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text, re.ASCII)
    if not match or match[2].lower() not in BYTE_UNITS:
        raise ValueError(f"must be a number of bytes, or with a unit such as 700MB, 0.7GB or 650MiB, not {text!r}")
    unit: int = BYTE_UNITS[match[2].lower()]
    return math.floor(Fraction(match[1]) * unit)


def parse_memory(text: str) -> int:
    """Return the bytes of `--memory`; 0 if it is empty. Raises ValueError."""
    return parse_bytes(text) if text else 0


def parse_samplers(text: str) -> tuple[str, ...]:
    """Return the sampler names of `--samplers "top_k;temp"`. Raises ValueError for an unknown sampler."""
    given = [name.strip().lower() for name in text.split(";") if name.strip()]
    plain = {name.replace("_", ""): name for name in SAMPLERS} | SAMPLER_ALIASES
    names = [plain.get(name.replace("_", "").replace("-", "")) for name in given]
    return require_known_samplers(names, given, " ".join(SAMPLERS))


def parse_sampler_sequence(text: str) -> tuple[str, ...]:
    """Return the sampler names of `--sampler-seq kt`. Raises ValueError for an unknown letter."""
    name_of = {letter: name for name, letter in SAMPLERS.items()}
    return require_known_samplers([name_of.get(letter) for letter in text], list(text), "".join(name_of))


def require_known_samplers(names: Sequence[str | None], given: Sequence[str], available: str) -> tuple[str, ...]:
    """Return the names. Raises ValueError if one is None; `given` is what the user wrote for them."""
    found = tuple(name for name in names if name)
    if len(found) < len(names):
        raise ValueError(f"unknown sampler {format_value(given[names.index(None)])}; available: {available}")
    return found


def parse_logit_bias(text: str) -> tuple[int, float]:
    """Return token id and bias of `--logit-bias 15043-1`. Raises ValueError if the text has another syntax."""
    found = LOGIT_BIAS.fullmatch(text)
    bias = parse_number(found[2]) if found else math.nan
    if found is None or math.isnan(bias) or len(found[1]) > 10:
        raise ValueError(f"must be a token id and the bias of its logit, such as 15043-1, not {format_value(text)}")
    return int(found[1]), bias


def parse_speculation_types(text: str) -> frozenset[str]:
    """Return the draft methods ("ngram", "draft", "head") of `--spec-type ngram-simple,draft-simple`.

    "head" stands for an MTP or EAGLE-3 head. Raises ValueError for an unknown type.
    """
    names = [name.strip() for name in text.split(",")]
    if unknown := next((name for name in names if name not in SPECULATION_TYPES), None):
        raise ValueError(f"unknown type {format_value(unknown)}; available: {' '.join(SPECULATION_TYPES)}")
    return frozenset(SPECULATION_TYPES[name] for name in names) - {""}


def parse_scaled_file(text: str) -> tuple[Path, float]:
    """Return the file and the scale of `--lora-scaled FILE:SCALE`. Raises ValueError for another syntax."""
    name, _, scale = text.rpartition(":")
    number = parse_number(scale)
    if not name or not abs(number) < MAX_SCALE:
        raise ValueError(f"must be FILE:SCALE, such as adapter.gguf:0.5, not {format_value(text)}")
    return Path(name), number


def parse_adapter_scale(text: str) -> tuple[int, float]:
    """Return the number of an adapter, and the scale, of `--lora-scales 0=0.5`; `0+0.5` and `0-0.5` are also accepted.

    Raises ValueError for another syntax, among others for NO_ADAPTERS.
    """
    found = ADAPTER_SCALE.fullmatch(text)
    scale = parse_number(found[2]) if found else math.nan
    if found is None or not abs(scale) < MAX_SCALE:
        raise ValueError(f"must be the number of an adapter and its scale, such as 0=0.5, not {format_value(text)}")
    return int(found[1]), scale


def check_adapter_scale(text: str) -> None:
    """Raise ValueError unless `parse_adapter_scale` accepts the text or it is NO_ADAPTERS."""
    if text != NO_ADAPTERS:
        parse_adapter_scale(text)


def parse_layer_range(text: str) -> tuple[int, int]:
    """Return the first and the last layer of `--control-vector-layer-range 10,20`; (0, 0) for an empty text.

    Raises ValueError for another syntax.
    """
    found = LAYER_RANGE.fullmatch(text)
    if text and found is None:
        raise ValueError(f"must be the first and the last layer, such as 10,20, not {format_value(text)}")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parse_number(text: str) -> float:
    """Return the number, or NaN if the text is not one."""
    try:
        return float(text)
    except ValueError:
        return math.nan
