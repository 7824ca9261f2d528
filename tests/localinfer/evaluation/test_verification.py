"""Verification passes for every kind of model and weight, and names the operation in which a bit is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import draft_head_models
import numpy as np
import pytest
import reference_models
from changed_kernels import flipped, load_changed
from flipped_bits import flip_a_bit, flip_a_bit_of_a_state, flip_a_bit_of_an_argument, flip_a_bit_of_codes
from lora_adapter import control_vector, lora_adapter, random_pairs
from tiny import tiny_llama, tiny_qwen3moe

import quant
from localinfer import LocalInferError, UsageError, file_operations
from localinfer.errors import UnsupportedError
from localinfer.evaluation.verification.operation_check import MARGIN, tolerance
from localinfer.evaluation.verification.verification import Verification
from localinfer.gguf.reader import open_gguf
from localinfer.kernels.signatures import ATTENTION, RMS_NORM, ROPE, KernelSignature
from localinfer.options import Options
from localinfer.runtime.graph_building import build_graph

TEXT = "Hello and the other one, which is longer than a small batch"
MODELS = reference_models.ALL
EXACT = {"threads": 1, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the file of a model, created once: of a reference model in F32, or a tiny one in Q8_0."""
    folder = tmp_path_factory.mktemp("models")

    def made(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists() and name in TINY:
            TINY[name](path)
        elif not path.exists():
            checkpoints.as_type(reference_models.checkpoint(name, folder), path, "F32")
        return path

    return made


def all_formats(path: Path) -> Path:
    """Write a llama in which each matrix has another type."""
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    matrices = [f"blk.{layer}.{name}.weight" for layer in range(7) for name in names]
    types = (*quant.FLOAT_TYPES, *quant.BLOCK_TYPES)
    assert len(types) <= len(matrices)
    return tiny_llama(path, n_layer=7, **dict(zip(matrices, types, strict=False)))


TINY: dict[str, Callable[[Path], Path]] = {"formats": all_formats, "llama": tiny_llama, "qwen3moe": tiny_qwen3moe}


def verify(path: Path, **options: Any) -> Verification:
    return file_operations.verify(path, TEXT, n_tokens=options.pop("n_tokens", 20), **options)


def failures(found: Verification) -> list[str]:
    return [f"{check.name}: {check.error:.1e} > {check.allowed:.1e}" for check in found.checks if not check.is_ok]


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_is_computed_correctly(name: str, file: Callable[[str], Path]) -> None:
    found = verify(file(name), **EXACT)
    assert not failures(found)
    assert not found.weights_not_finite
    whole = [20, 3] if name in reference_models.BIDIRECTIONAL else [17, 1, 2]
    assert found.batches == ([10, 8, 1, 2] if name in reference_models.ENCODER_DECODERS else whole)
    assert {check.operation for check in found.checks} >= {"embedding", "norm", "product"}


def test_models_with_an_mtp_head_are_verified_without_it(tmp_path: Path) -> None:
    found = verify(draft_head_models.write_with_mtp_head("glm4moe", tmp_path, "F32"), **EXACT)
    assert not failures(found)
    assert not [check.name for check in found.checks if "blk.3." in check.name]


@pytest.mark.parametrize("precision", ["fast", "high"])
def test_every_tensor_type_is_computed_correctly(precision: Any, file: Callable[[str], Path]) -> None:
    found = verify(file("formats"), threads=2, precision=precision)
    assert not failures(found)
    assert found.precision == precision
    types = {check.type for check in found.checks if check.operation == "product"}
    assert types == {*quant.FLOAT_TYPES, *quant.BLOCK_TYPES}
    # Half of what is allowed is for other orders of sums on other CPUs.
    sums = [check for check in found.checks if check.operation in ("product", "norm", "attention")]
    assert max(check.ratio for check in sums) < 0.5


PLANTED = {  # model, the op after which a bit of its output is flipped, the operation that is named
    "embedding": ("llama", "token_embd", "token_embd"),
    "norm": ("llama", "blk.1.attn_norm", "blk.1.attn_norm"),
    "product": ("llama", "blk.1.attn_q.weight", "blk.1.attn_q"),
    "product that is added": ("llama", "blk.0.ffn_down.weight", "blk.0.ffn_down"),
    "rope": ("llama", "blk.1.rope", "blk.1.attn_q_rope"),
    "cache": ("llama", "blk.1.append", "blk.1.attn_k_cache"),
    "attention": ("llama", "blk.1.attention", "blk.1.attn_heads"),
    "activation": ("llama", "blk.1.gated", "blk.1.gate"),
    "output layer": ("llama", "token_embd.weight", "token_embd"),
    "router": ("qwen3moe", "blk.1.experts.route", "blk.1.ffn_expert_weights"),
    "experts": ("qwen3moe", "blk.0.experts.combine", "blk.0.ffn_experts"),
    "experts with limits": ("kimi-k3-wide", "blk.2.experts.combine", "blk.2.ffn_experts"),
    "mean of streams": ("kimi-k3-wide", "blk.1.ffn_res_score", "blk.1.ffn_res_score"),
    "end of a stream": ("kimi-k3-wide", "copy", "blk.0.copy"),
    "convolution": ("mamba", "blk.1.ssm_conv1d", "blk.1.ssm_conv1d"),
    "selective scan": ("mamba", "blk.1.scan", "blk.1.ssm_heads"),
    "delta rule": ("qwen35", "blk.0.recur", "blk.0.ssm_heads"),
    "time mixing": ("rwkv7", "blk.1.time_mix.finish", "blk.1.time_mix_heads"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_wrong_bit_is_named(kind: str, file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, op, expected = PLANTED[kind]
    flip_a_bit(monkeypatch, op)
    options = {"threads": 1} if model in TINY else EXACT
    found = verify(file(model), n_tokens=8, **options)
    assert found.first_wrong is not None
    assert found.first_wrong.name == expected
    with pytest.raises(LocalInferError, match=rf"^model: {expected} \("):
        found.require_correct("model")


@pytest.mark.parametrize(("model", "op", "expected"), [
    ("mamba", "blk.1.scan", "blk.1.ssm_state"),
    ("mamba", "blk.1.ssm_conv1d", "blk.1.ssm_conv1d_state"),
    ("qwen35", "blk.0.recur", "blk.0.ssm_state"),
    ("rwkv7", "blk.1.channel_mix_shift_state", "blk.1.channel_mix_shift_state"),
    ("rwkv7", "blk.1.time_mix.recur", "blk.1.time_mix_state"),
])  # fmt: skip
def test_a_wrong_bit_of_a_state_is_named(
    model: str, op: str, expected: str, file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_a_bit_of_a_state(monkeypatch, op)
    found = verify(file(model), n_tokens=8, **EXACT)
    wrong = [check.name for check in found.checks if not check.is_ok]
    assert wrong == [expected]  # what follows continues with the wrong state


@pytest.mark.parametrize(("op", "argument", "bit", "expected"), [
    ("blk.1.attention", (ATTENTION, "scale"), 42, "blk.1.attn_heads"),  # of the 52 bits of the mantissa
    ("blk.1.ffn_norm", (RMS_NORM, "eps"), 55, "blk.1.ffn_norm"),  # of the exponent
    ("blk.0.rope", (ROPE, "n_rot"), 6, "blk.0.attn_q_rope"),  # 0 instead of 64
])  # fmt: skip
def test_a_kernel_with_a_wrong_argument_is_named(
    op: str, argument: tuple[KernelSignature, str], bit: int, expected: str, file: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    flip_a_bit_of_an_argument(monkeypatch, op, argument, bit)
    found = verify(file("llama"), n_tokens=8, threads=1)
    assert found.first_wrong is not None
    assert found.first_wrong.name == expected


COEFFICIENT = "fma(p, r, splat(f32x16, {}))", "0.6931471805599453", 12  # of x in the polynomial of 2^x
CONSTANTS = {  # model, op, whether its kernel is that of large batches; module, text with a constant, which, its bit
    "product, of few tokens": ("formats", "Q4_0", False, "quant.formats.q4_0", "zero_point={}", "8", 0),
    "product, of many tokens": ("formats", "Q4_0", True, "quant.formats.q4_0", "zero_point={}", "8", 0),
    "norm": ("llama", "blk.0.attn_norm", False, "localinfer.kernels.norm", "return float32({}) / sqrt(mean", "1.0", 22),
    "rope": (
        "llama", "blk.0.rope", True, "localinfer.kernels.rope",
        "load(float32, table + {} * n_rot + 4 * i)\n        a, b = load(float32, x + 8", "2", 0,
    ),
    "activation": ("llama", "blk.0.gated", True, "localinfer.kernels.exponentials", "f32x16, 1.0 / {})", "24", 3),
    "attention": ("llama", "blk.0.attention", False, "localinfer.kernels.exponentials", *COEFFICIENT),
    "state, of a selective scan": (
        "mamba", "blk.0.scan", False, "localinfer.kernels.exponentials", "splat(f32x16, 1.0 / {}))", "3", 2,
    ),
    "recurrence": (
        "qwen35", "blk.0.recur", False, "localinfer.kernels.recurrent.state_matrix",
        "(key, strip), Vector(float32, strip)\n    query_scale = float(key) ** -{}", "0.5", 22,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_wrong_bit_in_a_constant_of_a_compiled_kernel_is_named(
    kind: str, file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel is compiled of changed source text, and replaces the one of the first op that uses it."""
    model, op_name, large, module, text, constant, bit = CONSTANTS[kind]
    path, options = file(model), {"threads": 1} if model in TINY else EXACT
    if model == "formats":
        op_name = f"{matrix_of_type(path, op_name)}.weight"
    graph = build_graph(open_gguf(path), Options(**options)).graph
    op = next(op for op in graph.ops if op.name == op_name)
    kernel = op.large_batch if large else op.small_batch
    load_changed(monkeypatch, kernel, module, text.format(constant), text.format(flipped(constant, bit)), tmp_path)
    first = next(op for op in graph.ops if kernel in (op.small_batch, op.large_batch))
    wrong = verify(path, n_tokens=8, **options).first_wrong
    assert wrong is not None
    assert wrong.operation == kind.partition(",")[0]
    assert wrong.name.startswith(first.name.removesuffix(".weight").rpartition(".")[0])
    assert wrong.name == first.name.removesuffix(".weight") or model != "formats"


def matrix_of_type(path: Path, type_name: str) -> str:
    """Return the matrix of a type in the model in which each matrix has another one."""
    tensors = open_gguf(path).tensors
    name = next(name for name, each in tensors.items() if each.type_name == type_name and name.startswith("blk."))
    return name.removesuffix(".weight")


def test_wrongly_rounded_activations_are_named(file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    flip_a_bit(monkeypatch, "blk.1.ffn_norm", rounded=True)
    found = verify(file("llama"), n_tokens=8, threads=1)
    assert found.first_wrong is not None
    assert found.first_wrong.name == "blk.1.ffn_gate.quantized"


def test_what_is_allowed_depends_on_32_bit_floats_and_on_ties() -> None:
    values = np.array([[1.0, 2.0], [100.0, 50.0]])
    single = values + np.array([[1e-7, 0], [1e-5, 0]])
    allowed = tolerance(values, single, values)
    np.testing.assert_allclose(allowed, [[MARGIN * 1.5e-7 + 2 * 2.0**-20] * 2, [MARGIN * 1e-5 + 100 * 2.0**-20] * 2])
    with_ties = tolerance(values, single, values + np.array([[0, 1e-3], [0, 0]]))
    assert (with_ties[0] > allowed[0] + 1e-3).all()
    assert (with_ties[1] == allowed[1]).all()


# Biases of keys (also in one tensor), values that are dimensions of keys, heads of two sizes, windows, padded heads.
@pytest.mark.parametrize(
    ("name", "k_type", "v_type"),
    [("llama", "q8_0", "q4_0"), ("qwen2", "q4_0", "f16"), ("gpt2", "q4_0", "q4_0"), ("deepseek2", "q8_0", "f16"),
     ("gemma4", "q4_0", "q8_0"), ("phi2", "q8_0", "q8_0")],
)  # fmt: skip
def test_quantized_caches_are_checked(name: str, k_type: Any, v_type: Any, file: Callable[[str], Path]) -> None:
    found = verify(file(name), n_tokens=80, **EXACT | {"cache_type_k": k_type, "cache_type_v": v_type})
    assert not failures(found)
    anchored = name in ("qwen2", "gpt2", "phi2")
    assert any(check.name == "blk.1.attn_k_anchor" for check in found.checks) == anchored
    assert max(check.ratio for check in found.checks if check.operation == "cache") > 0.9  # the limit is exact


@pytest.mark.parametrize("k_type", ["q8_0", "q4_0"])
def test_a_wrong_bit_of_a_quantized_cache_is_named(
    k_type: Any, file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_a_bit_of_codes(monkeypatch, "blk.1.append")
    found = verify(file("llama"), n_tokens=8, threads=1, cache_type_k=k_type)
    wrong = [check.name for check in found.checks if not check.is_ok]
    assert wrong == ["blk.1.attn_k_cache"]  # attention continues with the wrong keys


def test_adapters_are_checked(
    file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"token_embd.weight": (280, 256), "blk.0.attn_q.weight": (256, 256), "blk.1.ffn_down.weight": (256, 512)}
    pairs = random_pairs(tmp_path / "pairs.gguf", shapes, rank=20)
    vector = control_vector(tmp_path / "vector.gguf", {1: np.ones(256, np.float32)})
    adapters = {
        "lora": [str(lora_adapter(tmp_path / "lora.gguf"))], "lora_scaled": [f"{pairs}:0.5"],
        "control_vector": [str(vector)],
    }  # fmt: skip
    for precision in ("fast", "high"):
        found = verify(file("llama"), threads=1, precision=precision, **adapters)
        assert not failures(found)
    plain = verify(file("llama"), threads=1, precision="high")
    assert [check.error for check in found.checks] != [check.error for check in plain.checks]
    flip_a_bit(monkeypatch, "blk.1.ffn_down.weight.lora_b")
    wrong = verify(file("llama"), threads=1, **adapters).first_wrong
    assert wrong is not None
    assert wrong.name == "blk.1.ffn_down"


def test_keys_whose_transform_does_not_fit_their_values_are_refused(file: Callable[[str], Path]) -> None:
    message = r"deepseek2\.attention\.value_length: 32 for keys of 64 in a q8_0 cache is not supported"
    with pytest.raises(UnsupportedError, match=message):
        verify(file("deepseek2-lite"), cache_type_k="q8_0")


def test_empty_texts_are_refused(file: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match=r"^the text has no tokens"):
        file_operations.verify(file("llama"), "")
