"""Well-formed files with invalid models: the engine rejects them with one line that names the key or the tensor.

Every size is validated before a kernel runs, because kernels have no bounds checks. Unusual but valid models run.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from tiny import Field, Stored, random_tensor, tiny_gemma3, tiny_llama, tiny_qwen2, tiny_qwen3

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.generation.sampling import SamplerChain
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.requirements import memory_requirements

Write: TypeAlias = Callable[..., Path]
WRITERS = {"llama": tiny_llama, "gemma3": tiny_gemma3, "qwen2": tiny_qwen2, "qwen3": tiny_qwen3}
OPTIONS = Options(ctx_size=64, threads=1, temp=0)
PROMPT = (5, 6, 7, 8, 9, 10, 11, 12)

each = pytest.mark.parametrize("architecture", WRITERS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def tiny(file: Path, architecture: str = "llama", **changes: Any) -> Path:
    """Write a model of one layer, in the format that is written fastest."""
    return WRITERS[architecture](file, **{"n_layer": 1, "type": "Q4_K"} | changes)


def error_of(path: Path, kind: type[LocalInferError] = LocalInferError) -> str:
    """Return the error line of loading the file, without its path; `inspect` reports the same."""
    f = open_gguf(path)
    with pytest.raises(kind) as caught:
        Engine.load(f, OPTIONS)
    with pytest.raises(kind) as planned:
        memory_requirements(f, OPTIONS)
    line = str(caught.value)
    assert str(planned.value) == line
    assert line.isprintable()
    assert line.startswith(f"{printable(str(path))}: ")
    return line.removeprefix(f"{printable(str(path))}: ")


@contextlib.contextmanager
def engine(path: Path, options: Options = OPTIONS) -> Iterator[Engine]:
    with contextlib.closing(Engine.load(open_gguf(path), options)) as running:
        yield running


def logits(path: Path, tokens: tuple[int, ...] = PROMPT) -> np.ndarray[Any, np.dtype[np.float32]]:
    with engine(path) as running:
        return running.logits(tokens)


def run(path: Path, n_tokens: int = 8) -> list[int]:
    """Generate some tokens, and check that each is in the vocabulary."""
    with engine(path) as running:
        sampler = SamplerChain(OPTIONS, running.n_vocab)
        tokens = [*PROMPT]
        scores = running.evaluate(tokens)
        for _ in range(n_tokens):
            tokens.append(sampler(scores, tokens))
            assert 0 <= tokens[-1] < running.n_vocab
            scores = running.evaluate(tokens[-1:])
        return tokens[len(PROMPT) :]


# ------------------------------------------------------------------------------------------ metadata


def test_no_architecture(file: Path) -> None:
    assert error_of(tiny(file, **{"general.architecture": None})).startswith("general.architecture: is missing")


@pytest.mark.parametrize("name", ["gpt9", "", "LLAMA", "lla\0ma", "llama\0", "llama.py", "../llama", "\x1b[2J"])
def test_unknown_architecture(name: str, file: Path) -> None:
    line = error_of(tiny(file, **{"general.architecture": name}), UnsupportedError)
    assert line.startswith("general.architecture: ")
    assert "is not supported (" in line


REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
INTEGERS = {
    **dict.fromkeys(WRITERS, (*REQUIRED[:5], "attention.head_count_kv", "rope.dimension_count")),
    "gemma3": (
        *REQUIRED[:5],
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
    ),
}
FLOATS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")


@each
@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key(architecture: str, key: str, file: Path) -> None:
    name = f"{architecture}.{key}"
    assert error_of(tiny(file, architecture, **{name: None})).startswith(f"{name}: is missing")


WRONG_FOR_BOTH = {
    "a string": Field("STRING", "1"),
    "an array": Field("ARRAY", [1, 1, 1], "UINT32"),
    "strings": Field("ARRAY", ["1"], "STRING"),
    "a bool": Field("BOOL", True),
}
WRONG_INTEGERS = WRONG_FOR_BOTH | {"a float": Field("FLOAT32", 1.0), "negative": Field("INT32", -1)}
WRONG_FLOATS = WRONG_FOR_BOTH | {"an integer": Field("UINT32", 1), "negative": Field("FLOAT32", -1.0)}


@each
def test_keys_of_wrong_type(architecture: str, file: Path) -> None:
    """Every key that is read is tried with every invalid type."""
    tables = [(INTEGERS[architecture], WRONG_INTEGERS), (FLOATS, WRONG_FLOATS)]
    for keys, wrong in tables:
        for key in keys:
            for value in wrong.values():
                name = f"{architecture}.{key}"
                assert error_of(tiny(file, architecture, **{name: value})).startswith(f"{name}: ")


@pytest.mark.parametrize("value", [Field("UINT32", 1), Field("ARRAY", ["llama"], "STRING"), Field("BOOL", True)])
def test_architecture_of_a_wrong_type(value: Field, file: Path) -> None:
    assert error_of(tiny(file, **{"general.architecture": value})).startswith("general.architecture: expected a string")


UNKNOWN_KEYS = {
    "ssm.conv_kernel": Field("UINT32", 8),
    "attention.scale": Field("FLOAT32", -8.0),
    "some.switch": Field("BOOL", True),
    "some.text": Field("STRING", "\x1b[31m"),
    "some.numbers": Field("ARRAY", [0, 1], "INT32"),
    "some.names": Field("ARRAY", ["a"], "STRING"),
}


@pytest.mark.parametrize("key", UNKNOWN_KEYS)
def test_unknown_keys_are_rejected(key: str, file: Path) -> None:
    """A key that may change the computation is rejected by name."""
    line = error_of(tiny(file, **{f"llama.{key}": UNKNOWN_KEYS[key]}), UnsupportedError)
    assert line.startswith(f"llama.{key}: ")
    assert line.endswith(" is not supported by the llama architecture")
    assert "\x1b" not in line


@pytest.mark.parametrize("value", [0, 0.0, False, "", "none", Field("ARRAY", [0, 0], "INT32")], ids=repr)
def test_unknown_keys_with_empty_values_are_ignored(value: Any, file: Path) -> None:
    assert run(tiny(file, **{"llama.some.key": value})) == run(tiny(file))


ANY_INTEGER = [Field(kind, 1) for kind in ("UINT8", "INT8", "UINT16", "INT16", "INT32", "UINT64", "INT64")]


@pytest.mark.parametrize("value", ANY_INTEGER, ids=lambda field: field.type)
def test_any_integer_type_is_accepted(value: Field, file: Path) -> None:
    assert run(tiny(file, **{"llama.block_count": value})) == run(tiny(file))


INVALID_VALUES = {
    "llama": {
        "attention.head_count": (0, 3, 5, 2**32 - 1),
        "attention.head_count_kv": (0, 3, 8, 2**32 - 1),
        "block_count": (0, 2**32 - 1, Field("UINT64", 2**64 - 1)),
        "nextn_predict_layers": (1, 2, 2**32 - 1),  # the only block cannot be an MTP block
        "embedding_length": (0, 1, 2**32 - 1),
        "feed_forward_length": (0, 2**32 - 1),
        "context_length": (0,),
        "rope.dimension_count": (0, 63, 66, 2**32 - 1),
        "rope.freq_base": (0.0, -1.0, float("nan"), float("inf"), float("-inf")),
        "rope.scaling.attn_factor": (0.0, -1.0, 3e38),
        "attention.layer_norm_rms_epsilon": (0.0, -1e-5, float("nan"), float("inf"), 1e30),
        "attention.temperature_scale": (float("nan"), 3e38, -3e38),
    },
    "gemma3": {
        "attention.head_count": (0, 2**32 - 1),
        "attention.head_count_kv": (0, 3, 4),
        "attention.key_length": (0, 2**32 - 1),
        "attention.value_length": (0, 128),
        "block_count": (0, 2**32 - 1),
        "rope.freq_base": (0.0, -1.0, float("nan"), float("inf")),
    },
}
INVALID_VALUE_CASES = [
    pytest.param(architecture, key, value, id=f"{architecture}-{key}-{number}")
    for architecture, keys in INVALID_VALUES.items()
    for key, values in keys.items()
    for number, value in enumerate(values)
]


@pytest.mark.parametrize(("architecture", "key", "value"), INVALID_VALUE_CASES)
def test_invalid_values_name_the_key(architecture: str, key: str, value: Any, file: Path) -> None:
    """The line names the key, or a value is plausible and the line names what does not match it."""
    line = error_of(tiny(file, architecture, **{f"{architecture}.{key}": value}))
    assert line.startswith((f"{architecture}.", "tensor "))
    if not isinstance(value, int) or value in (0, 2**32 - 1):
        assert line.startswith(f"{architecture}.{key}: ")


def test_heads_that_do_not_divide_the_embedding(file: Path) -> None:
    line = error_of(tiny(file, **{"llama.attention.head_count": 3, "llama.attention.head_count_kv": 3}))
    assert line.startswith("llama.attention.head_count: ")


SCALING = {
    "unknown type": ("rope.scaling.type", {"rope.scaling.type": "wobble"}),
    "type of another kind": ("rope.scaling.type", {"rope.scaling.type": 1}),
    "factor 0": ("rope.scaling.factor", {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}),
    "factor NaN": (
        "rope.scaling.factor",
        {"rope.scaling.type": "linear", "rope.scaling.factor": float("nan")},
    ),
    "factor negative": ("rope.scaling.factor", {"rope.scaling.type": "linear", "rope.scaling.factor": -2.0}),
}


@each
@pytest.mark.parametrize("case", SCALING)
def test_invalid_rope_scaling(architecture: str, case: str, file: Path) -> None:
    key, changes = SCALING[case]
    changed = {f"{architecture}.{name}": value for name, value in changes.items()}
    assert error_of(tiny(file, architecture, **changed)).startswith(f"{architecture}.{key}: ")


@pytest.mark.parametrize("factors", [np.ones(31), np.ones(33), np.zeros(32), np.full(32, np.nan), -np.ones(32)])
def test_invalid_rope_factors(factors: np.ndarray[Any, Any], file: Path) -> None:
    assert error_of(tiny(file, **{"rope_freqs.weight": factors})).startswith("tensor rope_freqs.weight: ")


@each
@pytest.mark.parametrize("n", [3, 9])
def test_per_layer_head_counts_of_wrong_length(architecture: str, n: int, file: Path) -> None:
    name = f"{architecture}.attention.head_count_kv"
    values = Field("ARRAY", [1] * n, "UINT32")
    assert error_of(tiny(file, architecture, **{name: values})).startswith(f"{name}: ")


@each
def test_per_layer_head_counts_and_lengths(architecture: str, file: Path) -> None:
    plain, arrays = open_gguf(tiny(file, architecture)), {}
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        name = f"{architecture}.{key}"
        values = [plain.metadata[name]] * plain.get(f"{architecture}.block_count", int)
        arrays[name] = Field("ARRAY", values, "INT32")
    assert run(tiny(file, architecture, **arrays)) == run(tiny(file, architecture))


@pytest.mark.parametrize("window", [0, 1, 3, 64, 65, 2**20])
def test_any_sliding_window_runs(window: int, file: Path) -> None:
    assert len(run(tiny(file, "gemma3", n_layer=6, sliding_window=window), n_tokens=30)) == 30


@pytest.mark.parametrize("n", [2, 5, 7])
def test_window_pattern_of_a_wrong_length(n: int, file: Path) -> None:
    name = "gemma3.attention.sliding_window_pattern"
    pattern = Field("ARRAY", [True] * n, "BOOL")
    assert error_of(tiny(file, "gemma3", **{name: pattern})).startswith(f"{name}: ")


@pytest.mark.parametrize("used", [0, 2, 9])
def test_experts_are_rejected_by_llama(used: int, file: Path) -> None:
    changes = {"llama.expert_count": 8, "llama.expert_used_count": used}
    assert error_of(tiny(file, **changes)).startswith("llama.expert")


def test_expert_count_of_0(file: Path) -> None:
    assert run(tiny(file, **{"llama.expert_count": 0})) == run(tiny(file))


# ------------------------------------------------------------------------------------------- tensors


@each
def test_missing_tensor(architecture: str, file: Path) -> None:
    for name in open_gguf(tiny(file, architecture)).tensors:
        assert error_of(tiny(file, architecture, **{name: None})).startswith(f"tensor {name}: is missing")


@each
def test_tensor_of_a_wrong_shape(architecture: str, file: Path) -> None:
    """The shapes are transposed, flat, or have another row or dimension; the line contains the shape."""
    for name, tensor in open_gguf(tiny(file, architecture)).tensors.items():
        for shape in wrong_shapes(tensor.shape):
            line = error_of(tiny(file, architecture, **{name: np.ones(shape, np.float32)}))
            assert line.startswith("tensor ")
            assert name in line or name == "token_embd.weight"  # the tensor that others are compared with
            assert str(list(shape)) in line or name == "token_embd.weight"


def wrong_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    flat = (int(np.prod(shape)),)
    near = [(shape[0] + 1, *shape[1:]), (shape[0] - 1, *shape[1:]), (*shape, 1), (1, *shape)]
    return [wrong for wrong in [*near, shape[::-1], flat] if wrong != shape]


def test_unknown_tensor_is_rejected(file: Path) -> None:
    """For example, a model with post-norms computes something else without them."""
    line = error_of(tiny(file, **{"blk.0.post_ffw_norm.weight": np.ones(256, np.float32)}), UnsupportedError)
    assert line.startswith("tensor blk.0.post_ffw_norm.weight: ")


def test_bias_in_one_block_only_is_rejected(file: Path) -> None:
    line = error_of(tiny(file, n_layer=2, **{"blk.1.attn_q.bias": np.ones(256, np.float32)}))
    assert line.startswith("tensor blk.0.attn_q.bias: is missing")


@each
def test_embedding_of_another_vocabulary(architecture: str, file: Path) -> None:
    """Every token id must have a row of the table and a token in the tokenizer."""
    rows, columns = open_gguf(tiny(file, architecture)).tensors["token_embd.weight"].shape
    for n in (rows - 1, rows + 1, 1):
        embedding = np.ones((n, columns), np.float32)
        line = error_of(tiny(file, architecture, **{"token_embd.weight": embedding}))
        assert line.startswith("tensor token_embd.weight: ")


def test_output_of_another_vocabulary(file: Path) -> None:
    output = np.ones((279, 256), np.float32)
    assert error_of(tiny(file, **{"output.weight": output})).startswith("tensor output.weight: ")


def test_tied_and_separate_output(file: Path) -> None:
    embedding = random_tensor(np.random.default_rng(3), "token_embd.weight", (280, 256), "Q8_0")
    tied = logits(tiny(file, **{"token_embd.weight": embedding}))
    same = logits(tiny(file, **{"token_embd.weight": embedding, "output.weight": embedding}))
    other = logits(tiny(file, **{"token_embd.weight": embedding}, tied=False))
    assert np.array_equal(tied, same)
    assert not np.allclose(tied, other)


@each
@pytest.mark.parametrize("type_name", ["F16", "Q8_0"])
def test_norms_are_float32(architecture: str, type_name: str, file: Path) -> None:
    for name, tensor in open_gguf(tiny(file, architecture)).tensors.items():
        if "norm" in name:
            raw = Stored(type_name, bytes_of(type_name, tensor.shape[0]))
            assert error_of(tiny(file, architecture, **{name: raw})).startswith(f"tensor {name}: ")


def bytes_of(type_name: str, n: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.zeros({"F16": 2 * n, "Q8_0": n // 32 * 34, "NVFP4": n // 64 * 36}[type_name], np.uint8)


def test_type_without_kernels_names_the_tensor(file: Path) -> None:
    raw = Stored("I8", np.zeros((256, 256), np.uint8))
    line = error_of(tiny(file, **{"blk.0.attn_q.weight": raw}), UnsupportedError)
    assert line.startswith("tensor blk.0.attn_q.weight: type I8 is not supported")
    assert "inspect" in line


@pytest.mark.parametrize("alignment", [1, 8, 4096])
def test_any_alignment_gives_the_same_logits(alignment: int, file: Path) -> None:
    """Tensors may begin at any byte offset."""
    aligned = logits(tiny(file))
    other = logits(tiny(file, **{"general.alignment": alignment, "odd.key": "x"}))
    assert np.array_equal(aligned, other)


# --------------------------------------------------------------------------- extreme weights

MATRICES = ("F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K")
SCALES = {"NaN": np.nan, "+inf": np.inf, "-inf": -np.inf}
SCALE_AT = {"Q8_0": 0, "Q4_1": 0, "Q5_0": 0, "Q4_K": 0, "Q6_K": 208}  # byte offset in a block
BLOCK_BYTES = {"Q8_0": 34, "Q4_1": 20, "Q5_0": 22, "Q4_K": 144, "Q6_K": 210}


def with_bad_value(type_name: str, shape: tuple[int, int], value: float) -> Stored:
    """Return a tensor with one bad value, or one bad scale, in its first row."""
    tensor = random_tensor(np.random.default_rng(1), "poisoned", shape, type_name)
    data = tensor.data.copy()
    if type_name in SCALE_AT:
        at = SCALE_AT[type_name]
        data[0, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    elif type_name == "F16":
        data[0, :2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    else:
        raw = np.frombuffer(np.float32(value).tobytes(), np.uint8)
        data[0, : 4 if type_name == "F32" else 2] = raw if type_name == "F32" else raw[2:]
    return Stored(type_name, data)


@pytest.mark.parametrize("type_name", MATRICES)
@pytest.mark.parametrize("scale", SCALES)
def test_non_finite_weights_are_an_error(type_name: str, scale: str, file: Path) -> None:
    """One bad value makes the residual stream non-finite, so there is no most probable token."""
    weights = with_bad_value(type_name, (256, 512), SCALES[scale])
    with pytest.raises(LocalInferError, match="logits"):
        run(tiny(file, **{"blk.0.ffn_down.weight": weights}))


@pytest.mark.parametrize("type_name", MATRICES)
def test_non_finite_output_row_affects_one_token_only(type_name: str, file: Path) -> None:
    """Tokens with finite rows can still be selected."""
    weights = with_bad_value(type_name, (280, 256), np.nan)
    scores = logits(tiny(file, **{"output.weight": weights}))
    assert np.isfinite(scores[:, 1:]).all()
    assert 0 not in run(file)


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"])
def test_subnormal_scales(type_name: str, file: Path) -> None:
    tensor = random_tensor(np.random.default_rng(1), "token_embd.weight", (280, 256), type_name)
    blocks = tensor.data.reshape(-1, BLOCK_BYTES[type_name]).copy()
    at = SCALE_AT[type_name]
    blocks[:, at : at + 2] = (1, 0)  # 2^-24, the smallest half
    small = Stored(type_name, blocks.reshape(tensor.data.shape))
    scores = logits(tiny(file, **{"output.weight": small}))
    assert np.isfinite(scores).all()
    assert scores.any()


@each
def test_all_zero_weights_select_the_first_token(architecture: str, file: Path) -> None:
    """All tokens are equally probable, and the first one is selected."""
    tensors = open_gguf(tiny(file, architecture)).tensors
    zeros = {
        name: Stored(t.type_name, np.zeros((t.shape[0], t.nbytes // t.shape[0]), np.uint8))
        for name, t in tensors.items()
        if len(t.shape) == 2
    }
    assert not logits(tiny(file, architecture, **zeros)).any()
    assert set(run(file)) == {0}


def test_overflowing_weights_are_an_error(file: Path) -> None:
    huge = {
        "blk.0.ffn_down.weight": np.full((256, 512), 3e38, np.float32),
        "blk.0.ffn_up.weight": np.full((512, 256), 3e38, np.float32),
    }
    with pytest.raises(LocalInferError, match="logits"):
        run(tiny(file, **huge))


# --------------------------------------------------------------------------------------- damaged files


@each
def test_damaged_headers_are_rejected_or_run(architecture: str, file: Path) -> None:
    """A random bit flip in the header gives a one-line error or a working model, but never a crash."""
    content = tiny(file, architecture).read_bytes()
    header_ends = open_gguf(file).data_offset
    tokens = content.index(b"tokenizer.ggml.tokens")
    table = content.index(b"token_embd.weight")
    choose = random.Random(0)
    offsets = [*choose.sample(range(tokens), 150), *choose.sample(range(table, header_ends), 100)]
    lines = []
    for offset in offsets:
        damaged = bytearray(content)
        damaged[offset] ^= 1 << choose.randrange(8)
        file.write_bytes(damaged)
        try:
            run(file)
        except LocalInferError as error:
            lines.append(str(error))
    assert all(line.isprintable() for line in lines)
    assert 100 < len(lines) < 245
