"""Damaged, malicious or unsupported checkpoints: a one-line error names the file and the problem."""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import copy_checkpoint, edit_json
from safetensors.numpy import load_file, save_file

from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, ModelNotFoundError, UnsupportedError
from localinfer.escaping import printable

Attack = Callable[[Path], object]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def refusal(folder: Path) -> LocalInferError:
    """Return the error message after checking that it is one line that begins with the directory."""
    with pytest.raises(LocalInferError) as caught:
        open_checkpoint(folder)
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith(printable(str(folder)))
    return caught.value


def config(**changes: Any) -> Attack:
    """Set values of config.json; None deletes them."""
    return lambda folder: edit_json(folder / "config.json", lambda values: values.update(changes))


def tokenizer(**changes: Any) -> Attack:
    return lambda folder: edit_json(folder / "tokenizer.json", lambda values: values.update(changes))


def model_of_tokenizer(**changes: Any) -> Attack:
    return lambda folder: edit_json(folder / "tokenizer.json", lambda values: values["model"].update(changes))


def index(**files: Any) -> Attack:
    return lambda folder: edit_json(folder / INDEX, lambda values: values["weight_map"].update(files))


def write(name: str, content: bytes) -> Attack:
    return lambda folder: (folder / name).write_bytes(content)


def remove(*names: str) -> Attack:
    return lambda folder: [(folder / name).unlink() for name in names]


def tensors(**changes: Any) -> Attack:
    """Set tensors of qwen2's file; None deletes them."""

    def attack(folder: Path) -> None:
        actual = load_file(folder / WEIGHTS) | changes
        save_file({name: values for name, values in actual.items() if values is not None}, folder / WEIGHTS)

    return attack


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def twice(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / FIRST).read_bytes())


def shortened(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])


ONES = np.ones
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
NORM, KEY = "model.norm.weight", "model.layers.1.self_attn.k_proj.weight"
LLAMA: dict[str, tuple[Attack, str]] = {
    "no configuration": (remove("config.json"), "there is no config.json"),
    "an empty file": (write("config.json", b""), "config.json: not JSON"),
    "a list": (write("config.json", b"[]"), "config.json: not a JSON object"),
    "a byte that is not UTF-8": (write("config.json", b'{"\xff": 1}'), "config.json: not UTF-8 at byte 2"),
    "not a number": (write("config.json", b'{"rms_norm_eps": NaN}'), "config.json: not JSON: NaN"),
    "infinity": (write("config.json", b'{"rms_norm_eps": 1e999}'), "config.json: not JSON: 1e999"),
    "nested deeply": (write("config.json", b"[" * 200_000), "config.json: not JSON: nested too deeply"),
    "a number of 10,000 digits": (write("config.json", b"[" + b"1" * 10_000 + b"]"), "config.json: not JSON"),
    "lone surrogate": (
        model_of_tokenizer(vocab={"\ud800": 1}),
        "tokenizer.json: not JSON: \\ud800 is a lone surrogate",
    ),
    "lone surrogate in a list": (model_of_tokenizer(merges=["\udfff a"]), "not JSON: \\udfff is a lone"),
    "an index that is a list": (write(INDEX, b"[]"), f"{INDEX}: not a JSON object"),
    "a pointer": (write("tokenizer.json", POINTER), "tokenizer.json: not JSON: this is a Git LFS pointer"),
    "an index of nothing": (write(INDEX, b"{}"), f"{INDEX}: weight_map: is missing"),
    "a shard that is missing": (remove(SECOND), f"{SECOND}: no such file"),
    "a shard elsewhere": (index(**{NORM: f"../llama/{SECOND}"}), f"weight_map.{NORM}: '../llama"),
    "a shard anywhere": (index(**{NORM: "/etc/passwd"}), f"weight_map.{NORM}: '/etc/passwd'"),
    "a shard that is the directory": (index(**{NORM: ".."}), f"weight_map.{NORM}: '..'"),
    "a shard without a name": (index(**{NORM: ""}), f"weight_map.{NORM}: ''"),
    "a shard with a long name": (index(**{NORM: "9" * 5000 + ".safetensors"}), "no such file, but"),
    "a numeric shard name": (index(**{NORM: 1}), f"weight_map.{NORM}: expected a string"),
    "a tensor that is in no shard": (index(**{"lm_head.bias": FIRST}), "weight_map.lm_head.bias: is not in"),
    "a tensor in two shards": (twice, "is also in"),
    "no tokenizer": (remove("tokenizer.json"), "there is neither tokenizer.json nor tokenizer.model"),
    "a vocabulary that is a list": (model_of_tokenizer(vocab=[]), "model.vocab: expected an object"),
    "a token id that is a string": (model_of_tokenizer(vocab={"a": "1"}), "model.vocab.a: expected an integer"),
    "an id below zero": (model_of_tokenizer(vocab={"a": -1}), "model.vocab: two tokens"),
    "an id twice": (model_of_tokenizer(vocab={"a": 1, "b": 1}), "model.vocab: two tokens"),
    "an id beyond the embedding": (model_of_tokenizer(vocab={"a": 5000}), "a token 5000, but the embedding has 323"),
    "an added token before it": (tokenizer(added_tokens=[{"id": -1, "content": "x"}]), "added_tokens[0].id: -1 is not"),
    "an added token like another": (tokenizer(added_tokens=[{"id": 322, "content": "a"}]), "are the same, 'a'"),
    "an added token without a text": (tokenizer(added_tokens=[{"id": 322}]), "added_tokens[0].content: is missing"),
    "added tokens that are numbers": (tokenizer(added_tokens=[1]), "added_tokens: expected objects"),
    "merges of three": (model_of_tokenizer(merges=["a b c"]), "model.merges[0]: 'a b c' is not a pair"),
    "merges of nothing": (model_of_tokenizer(merges=[["a", ""]]), "model.merges[0]"),
    "merges that are numbers": (model_of_tokenizer(merges=[["a", 1]]), "model.merges[0]"),
}
QWEN2: dict[str, tuple[Attack, str]] = {
    "no weights": (remove(WEIGHTS), f"there is neither {WEIGHTS} nor"),
    "weights that are not": (write(WEIGHTS, b"{" * 100), f"{WEIGHTS}: not a safetensors file"),
    "weights of nothing": (write(WEIGHTS, b""), WEIGHTS),
    "a pointer to weights": (write(WEIGHTS, POINTER), f"{WEIGHTS}: not a safetensors file: this is a Git LFS pointer"),
    "a header without an end": (write(WEIGHTS, b"\xff" * 7 + b"\x7f{}"), f"{WEIGHTS}: not a safetensors file"),
    "weights cut short": (shortened, f"{WEIGHTS}: not a safetensors file"),
    "a tensor that is missing": (tensors(**{KEY: None}), f"tensor {KEY}: is missing"),
    "another shape": (tensors(**{KEY: ONES((64, 32), np.float32)}), f"tensor {KEY}: has shape [64, 32], not [32, 64]"),
    "more dimensions": (tensors(**{KEY: ONES((32, 64, 1), np.float32)}), f"tensor {KEY}: has shape"),
    "a vector too short": (tensors(**{NORM: ONES(63, np.float32)}), f"tensor {NORM}: has shape [63], not [64]"),
    "fewer rows than tokens": (config(vocab_size=325), "embed_tokens.weight: has shape [326, 64], not [325, 64]"),
    "more blocks than there are": (
        config(num_hidden_layers=3),
        "tensor model.layers.2.input_layernorm.weight: is miss",
    ),
    "heads that do not divide": (config(num_key_value_heads=3), "num_key_value_heads: is 3; it must divide 2"),
    "an odd head": (config(head_dim=31), "head_dim: is 31; it must be even"),
    "a base of zero": (config(rope_parameters={"rope_theta": 0}), "rope_parameters.rope_theta: is 0"),
    "a scale of zero": (
        config(rope_parameters={"rope_type": "linear", "factor": 0.0}),
        "rope_parameters.factor: is 0; it must be above 0",
    ),
    "a scale without a factor": (config(rope_parameters={"rope_type": "linear"}), "rope_parameters.factor: is missing"),
    "layers of a text": (config(rope_scaling="linear", rope_parameters=None), "rope_scaling: expected an object"),
}
UNSUPPORTED: dict[str, tuple[Attack, str]] = {
    "another architecture": (config(architectures=["GPT9"]), "'GPT9' is not supported; the most similar supported"),
    "no architecture": (config(architectures=[]), "architectures: None is not supported"),
    "an architecture that is a list": (config(architectures=[[]]), "architectures: [] is not supported"),
    "a pickle": (pickled, "pytorch_model.bin: is a pickle, which is never loaded"),
    "weights that are quantized": (config(quantization_config={"bits": 4}), "quantization_config: quantized weights"),
    "another activation": (config(hidden_act="relu"), "hidden_act: 'relu' is not supported"),
    "scores in other bounds": (config(attn_logit_softcapping=50.0), "attn_logit_softcapping: 50.0 is not supported"),
    "scores of another scale": (config(query_pre_attn_scalar=100), "query_pre_attn_scalar: 100 is not supported"),
    "another rotary embedding": (config(rope_parameters={"rope_type": "so"}), "rope_type: 'so' is not supported"),
    "a part of a head": (config(rope_parameters={"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
    "a tensor more": (
        tensors(**{"model.x.bias": ONES(3, np.float32)}),
        "tensor model.x.bias: is not part of the supported qwen2",
    ),
    "weights of 64 bits": (tensors(**{KEY: ONES((32, 64))}), f"tensor {KEY}: type F64 is not supported"),
    "a tokenizer of another kind": (model_of_tokenizer(type="WordLevel"), "model.type: 'WordLevel' is not supported"),
    "texts made small": (tokenizer(normalizer={"type": "Lowercase"}), "normalizer.type: 'Lowercase' is not supported"),
}


@pytest.mark.parametrize("case", LLAMA)
def test_refusals_of_llama(case: str, tmp_path: Path) -> None:
    attack, line = LLAMA[case]
    attack(folder := copy_checkpoint("llama", tmp_path))
    assert line in str(refusal(folder))


@pytest.mark.parametrize("case", QWEN2)
def test_refusals_of_qwen2(case: str, tmp_path: Path) -> None:
    attack, line = QWEN2[case]
    attack(folder := copy_checkpoint("qwen2", tmp_path))
    assert line in str(refusal(folder))


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(case: str, tmp_path: Path) -> None:
    attack, line = UNSUPPORTED[case]
    attack(folder := copy_checkpoint("qwen2", tmp_path))
    error = refusal(folder)
    assert line in str(error)
    assert isinstance(error, UnsupportedError)


REQUIRED = (
    "architectures",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "max_position_embeddings",
    "vocab_size",
    "rms_norm_eps",
)


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_or_invalid_numbers(key: str, tmp_path: Path) -> None:
    folder = copy_checkpoint("qwen2", tmp_path)
    for value in (None, "1", True, [2], {}, 0, -1, 10**9, 10**400):
        config(layer_types=None, **{key: value})(folder)
        if value != 10**9 or key != "max_position_embeddings":
            assert f"{key}: " in str(refusal(folder)), value


@pytest.mark.parametrize("name", ["nowhere", "config.json", "no\0where"])
def test_no_such_directory(name: str, tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    assert isinstance(refusal(folder / name), ModelNotFoundError)


def test_file_overwritten_after_opening(tmp_path: Path) -> None:
    folder = copy_checkpoint("qwen2", tmp_path)
    tensor = open_checkpoint(folder).tensors["token_embd.weight"]
    shortened(folder)
    with pytest.raises(LocalInferError, match="changed or truncated"):
        tensor.load()


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral"])
def test_bytes_changed_at_random(name: str, tmp_path: Path) -> None:
    """The result is a one-line error or another valid model."""
    folder, choose, lines = copy_checkpoint(name, tmp_path), random.Random(0), []
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        header = 3000 if file.suffix == ".safetensors" else len(content)
        for _ in range(12):
            damaged = bytearray(content)
            damaged[choose.randrange(min(header, len(content)))] ^= 1 << choose.randrange(8)
            file.write_bytes(damaged)
            try:
                open_checkpoint(folder)
            except LocalInferError as error:
                lines.append(str(error))
        file.write_bytes(content)
    assert all(line.isprintable() for line in lines)
    assert len(lines) > 20


def test_values_that_are_not_finite_cause_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = copy_checkpoint("qwen2", tmp_path)
    content = bytearray((folder / WEIGHTS).read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[start:] = b"\xa0\x7f" * (len(content[start:]) // 2)  # signaling NaNs in bfloat16
    (folder / WEIGHTS).write_bytes(content)
    for tensor in open_checkpoint(folder).tensors.values():
        tensor.load()
    assert list(recwarn) == []


UNUSUAL_VALUES = (None, 7, -1.5, 1e300, 10**400, "", "\x1b[2J", [], {}, [7], ["x"], [[]], [{}], {"x": 7}, True)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_values_of_another_type_anywhere(name: str, tmp_path: Path) -> None:
    """Values of each JSON file, at any depth, are replaced: the result is a one-line error or another valid model."""
    folder, choose = copy_checkpoint(name, tmp_path), random.Random(0)
    (folder / "generation_config.json").write_text('{"top_k": 1, "temperature": 0.5}')
    for file in sorted(folder.glob("*.json")):
        content = file.read_bytes()
        all_paths = list(key_paths(json.loads(content)))
        near = [key_path for key_path in all_paths if len(key_path) < 3 or "vocab" not in key_path]
        for key_path in choose.sample(near, min(10, len(near))):
            for unusual in choose.sample(UNUSUAL_VALUES, 5):
                edit_json(file, lambda values, key_path=key_path, unusual=unusual: put(values, key_path, unusual))
                with contextlib.suppress(LocalInferError):
                    open_checkpoint(folder)
                file.write_bytes(content)


def key_paths(value: Any, key_path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of keys to each nested value."""
    if key_path:
        yield key_path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from key_paths(value[key], (*key_path, key))


def put(values: Any, key_path: tuple[Any, ...], value: Any) -> None:
    for key in key_path[:-1]:
        values = values[key]
    values[key_path[-1]] = value
