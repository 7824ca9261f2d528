"""Verification passes for every encoder of images and sounds, and names the op in which a bit is wrong."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import parakeet_files
import projectors
import pytest
import sound_projectors
from changed_kernels import flipped, load_changed
from flipped_bits import flip_a_bit_of_an_encoder

from cli import __main__
from localinfer import LocalInferError, UsageError, file_operations
from localinfer.evaluation.verification.encoder_inputs import EncoderInput, projector_inputs
from localinfer.evaluation.verification.encoder_verification import verify_inputs
from localinfer.evaluation.verification.verification import Verification
from localinfer.gguf.reader import open_gguf
from localinfer.multimodal.projector_file import ProjectorFile, open_projector
from localinfer.options import Options

EXACT = Options(threads=1)
OPERATIONS = {  # of all encoders
    "activation", "add", "attention", "average", "cache", "clip", "convolution", "copy", "gather", "interpolation",
    "norm", "positions", "product", "rope", "scale", "soft cap", "softmax", "spectrogram",
}  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ProjectorFile]:
    folder = tmp_path_factory.mktemp("projectors")

    def made(name: str) -> ProjectorFile:
        write = (sound_projectors if name in sound_projectors.NAMES else projectors).write
        return open_projector(write(name, folder), None)

    return made


def reference_input(name: str, file: ProjectorFile, options: Options = EXACT) -> list[EncoderInput]:
    """Return the first of the reference images of an encoder, which are small, or the sound that is made."""
    if name in sound_projectors.NAMES:
        return [each for each in projector_inputs(file, None, None, options) if each.description.startswith("sound")]
    case = projectors.reference(name).cases[0]
    return [EncoderInput("image", partial(file.build, case.grid, options), case.patches)]


def failures(found: Verification) -> list[str]:
    return [f"{check.name}: {check.error:.1e} > {check.allowed:.1e}" for check in found.checks if not check.is_ok]


@pytest.mark.parametrize("name", [*projectors.NAMES, *sound_projectors.NAMES])
def test_every_encoder_is_computed_correctly(name: str, opened: Callable[[str], ProjectorFile]) -> None:
    file = opened(name)
    found = verify_inputs(file.f, reference_input(name, file))
    assert not failures(found)
    assert not found.weights_not_finite
    assert found.precision == "high"
    names = Counter(check.name for check in found.checks if check.operation != "interpolation")
    assert max(names.values()) == 1
    # Half of what is allowed is for other orders of sums on other CPUs.
    assert max(check.ratio for check in found.checks if check.operation != "cache") < 0.5
    assert {check.operation for check in found.checks} <= OPERATIONS


@pytest.mark.parametrize("precision", ["fast", "high"])
@pytest.mark.parametrize("type_name", ["Q8_0", "BF16"])
def test_rounded_activations_and_caches_are_checked(
    type_name: str, precision: Any, opened: Callable[[str], ProjectorFile], tmp_path: Path
) -> None:
    source, path = opened("qwen2_5vl").f.path, tmp_path / "quantized.gguf"
    assert __main__.run(["quantize", str(source), str(path), type_name]) == 0
    file, options = open_projector(path, None), Options(threads=1, precision=precision)
    found = verify_inputs(file.f, reference_input("qwen2_5vl", file, options))
    assert not failures(found)
    assert found.precision == precision
    operations = {check.operation for check in found.checks}
    assert ("quantize" in operations) == (type_name == "Q8_0" or precision == "fast")
    assert max(check.ratio for check in found.checks if check.operation == "product") < 0.5
    if precision == "fast":
        assert max(check.ratio for check in found.checks if check.operation == "cache") > 0.5  # the limit is exact


PLANTED = {  # encoder, the name of the op, the check that names it
    "patches": ("gemma3", "v.patch_embd.weight", "v.patch_embd"),
    "average": ("gemma3", "average", "v.average"),
    "pixel shuffle": ("idefics3", "gather", "v.gather"),
    "rope": ("qwen2_5vl", "v.blk.1.rope", "v.blk.1.attn_q_rope"),
    "windowed attention": ("qwen2_5vl", "v.blk.0.attention", "v.blk.0.attn_heads"),
    "cross-attention": ("minicpm-v", "resampler.attention", "resampler.attn_heads"),
    "relative positions": ("deepseekocr2", "v.sam.blk.0.relative_positions", "v.sam.blk.0.relative_positions.k"),
    "depthwise convolution": ("parakeet", "a.blk.0.conv_dw.weight", "a.blk.0.conv_dw"),
    "attention with distances": ("parakeet", "a.blk.1.attention", "a.blk.1.attn_heads"),
    "cumulative norm": ("gemma3na", "a.conv1d.0.norm", "a.conv1d.0.norm"),
    "activation": ("gemma3na", "a.blk.0.gated", "a.blk.0.gate"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_wrong_bit_is_named(
    kind: str, opened: Callable[[str], ProjectorFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, op_name, name = PLANTED[kind]
    file = opened(encoder)
    inputs = reference_input(encoder, file)
    ops = inputs[0].build()[0].graph.ops
    flip_a_bit_of_an_encoder(monkeypatch, next(number for number, op in enumerate(ops) if op.name == op_name))
    found = verify_inputs(file.f, inputs)
    assert [check.name for check in found.checks if not check.is_ok] == [name]
    with pytest.raises(LocalInferError, match=rf"^model\.gguf: {name} \(.+\): the error is .+ of the largest value"):
        found.require_correct("model.gguf")


def test_wrongly_rounded_activations_and_keys_are_named(
    opened: Callable[[str], ProjectorFile], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, options = tmp_path / "quantized.gguf", Options(threads=1, precision="fast")
    assert __main__.run(["quantize", str(opened("gemma3").f.path), str(path), "Q8_0"]) == 0
    file = open_projector(path, None)
    inputs = reference_input("gemma3", file, options)
    names = [op.name for op in inputs[0].build()[0].graph.ops]
    flip_a_bit_of_an_encoder(monkeypatch, names.index("v.blk.1.ln2"), rounded=True)
    flip_a_bit_of_an_encoder(monkeypatch, names.index("v.blk.0.append"))
    wrong = [check.name for check in verify_inputs(file.f, inputs).checks if not check.is_ok]
    assert wrong[:2] == ["v.blk.0.attn_k_cache", "v.blk.1.ffn_up.quantized"]  # kernels may add up what they rounded


CONSTANTS = {  # encoder, op; module, text with a constant, which, its bit; the check that names it
    "average": (
        "gemma3", "average", "localinfer.kernels.residual", "splat(f32x16, float32({}) / float32(width))", "1.0", 22,
        "v.average",
    ),
    "relative positions": (
        "deepseekocr2", "v.sam.blk.0.relative_positions", "localinfer.kernels.attention.relative_positions",
        "store(key_out + 4 * (size + y), float32({}))", "1.0", 22, "v.sam.blk.0.relative_positions.k",
    ),
    "attention with distances": (
        "parakeet", "a.blk.0.attention", "localinfer.kernels.relative_attention", "factor = float32({}) / reduce_sum",
        "1.0", 22, "a.blk.0.attn_heads",
    ),
    "cumulative norm": (
        "gemma3na", "a.conv1d.0.norm", "localinfer.kernels.norm", "factor = float64({}) / sqrt(distances", "1.0", 22,
        "a.conv1d.0.norm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_wrong_bit_in_a_constant_of_a_kernel_of_encoders_is_named(
    kind: str, opened: Callable[[str], ProjectorFile], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel is compiled of changed source text, and replaces the one of the first op that uses it."""
    encoder, op_name, module, text, constant, bit, name = CONSTANTS[kind]
    file = opened(encoder)
    inputs = reference_input(encoder, file)
    op = next(op for op in inputs[0].build()[0].graph.ops if op.name == op_name)
    kernel = op.large_batch
    load_changed(monkeypatch, kernel, module, text.format(constant), text.format(flipped(constant, bit)), tmp_path)
    found = verify_inputs(file.f, inputs)
    assert found.first_wrong is not None
    assert found.first_wrong.name == name


def test_a_wrong_spectrogram_is_named(
    opened: Callable[[str], ProjectorFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np.fft, "rfft", lambda x, transform=np.fft.rfft: transform(x) * 1.001)
    file = opened("ultravox")
    found = verify_inputs(file.f, reference_input("ultravox", file))
    assert [check.name for check in found.checks if not check.is_ok] == ["spectrogram"]


def test_weights_that_are_not_finite_are_named(opened: Callable[[str], ProjectorFile], tmp_path: Path) -> None:
    f = opened("gemma3").f
    content = bytearray(f.path.read_bytes())
    at = f.tensors["v.blk.1.ffn_up.weight"].offset
    content[at : at + 4] = np.float32(np.nan).tobytes()
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    found = verify_inputs(open_gguf(path), reference_input("gemma3", open_projector(path, None)))
    assert found.weights_not_finite == ["v.blk.1.ffn_up.weight"]


@pytest.mark.parametrize("name", ["ctc", "tdt"])
def test_speech_recognition_models_are_verified(name: str, tmp_path: Path) -> None:
    found = file_operations.verify(parakeet_files.write_model(name, tmp_path / "parakeet.gguf"), threads=1)
    assert not failures(found)
    assert found.inputs == ["sound of 2.5 s: 250 frames"]
    assert {"spectrogram", "convolution", "attention", "product"} <= {check.operation for check in found.checks}


def test_files_without_a_language_model_take_no_text(opened: Callable[[str], ProjectorFile]) -> None:
    path = opened("gemma3").f.path
    with pytest.raises(UsageError, match=r"^prompt: .+gemma3\.gguf has no language model, to which this belongs"):
        file_operations.verify(path, "text")
    with pytest.raises(UsageError, match=r"^ctx_size: .+gemma3\.gguf has no language model, to which this belongs"):
        file_operations.verify(path, ctx_size=64)
