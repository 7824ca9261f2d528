"""Drafts of new architectures: reference models, compared as if their architecture were unknown."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_models
from checkpoints import edit_json
from safetensors.numpy import load_file, save_file

from localinfer.conversion import open_checkpoint
from localinfer.conversion.architectures import find_architecture
from localinfer.conversion.new_architecture.comparison import compare
from localinfer.conversion.new_architecture.draft import make_draft
from localinfer.conversion.new_architecture.ranking import rank
from localinfer.conversion.new_architecture.survey import read_survey
from localinfer.errors import LocalInferError, UnsupportedError, UsageError

# Another architecture, and parts of the remarks on what differs from it.
OTHERS = {
    "apertus": ("qwen3", ["no ffn_gate", "DecoderSpec(gated=False)", "act_fn.alpha_n [1]: a number of each layer",
                          "hidden_act is \"xielu\": DecoderSpec(activation='xielu')"]),
    "arcee": ("llama", ["no ffn_gate", "DecoderSpec(activation='relu_squared')"]),
    "dbrx": ("llama", ["no attn_q, attn_k, attn_v, which llama has", "has attn_qkv, attn_output_norm"]),
    "deepseek2": ("mistral4", ["no ffn_gate_up_exps", "has ffn_gate_exps, ffn_up_exps"]),
    "exaone4": ("qwen3", ["no attn_norm", "has post_ffw_norm, which qwen3 lacks: DecoderSpec(post_norms"]),
    "gemma2": ("gemma3", ["no attn_q_norm, attn_k_norm", "value of attn_logit_softcapping: a soft cap"]),
    "granite": ("llama", ["value of logits_scaling: DecoderSpec(logit_scale=...)"]),
    "gptneox": ("codeshell", ["does not read use_parallel_residual: DecoderSpec(parallel=True)"]),
    "mixtral": ("granitemoe", []),
    "plm": ("deepseek2", ["no experts", "no ffn_gate", "num_experts_per_tok: is missing"]),
    "qwen3moe": ("llama", ['attn_q_norm, which llama lacks: AttentionSpec(head_norm=', "norm_topk_prob"]),
}  # fmt: skip


def edited_tensors(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# A survey keeps one tensor of each name; the gates of Ling 3.0 and of Kimi K3 have one name in checkpoints, and two in
# GGUF, and the layers of HRM-Text are in two modules.
TWOFOLD = ("bailingmoe3", "hrm-text", "kimi-k3")
SURVEYED = [name for name in reference_models.NAMES if not name.startswith(TWOFOLD)]


@pytest.mark.parametrize("name", SURVEYED)
def test_each_model_is_like_its_own_architecture(name: str, tmp_path: Path) -> None:
    survey = read_survey(reference_models.checkpoint(name, tmp_path))
    comparison = compare(survey, find_architecture(survey.config)[0])
    assert comparison.distance < 1, comparison


@pytest.mark.parametrize("name", ["apertus", "deepseek2", "falcon-h1", "gemma2", "plm", "qwen3moe"])
def test_the_nearest_architecture_is_its_own(name: str, tmp_path: Path) -> None:
    survey, architecture = read_survey(reference_models.checkpoint(name, tmp_path)), reference_models.architecture(name)
    assert rank(survey, architecture)[0].comparison.architecture.name == architecture
    assert architecture not in [each.comparison.architecture.name for each in rank(survey, "new", architecture)]


@pytest.mark.parametrize("name", OTHERS)
def test_the_draft_of_a_model_from_another_architecture(name: str, tmp_path: Path) -> None:
    architecture, (other, remarks) = reference_models.architecture(name), OTHERS[name]
    survey = read_survey(reference_models.checkpoint(name, tmp_path))
    candidates = rank(survey, architecture, without=architecture)
    candidate = next(each for each in candidates if each.comparison.architecture.name == other)
    draft = make_draft(architecture, survey.class_name, candidate)
    for remark in remarks:
        assert any(remark in each for each in draft.remarks), draft.remarks
    for text in draft.files.values():
        compile(text, "draft", "exec")
        assert max(map(len, text.splitlines())) <= 120
        assert "TODO" in text


def test_what_differs_becomes_fields_of_the_conversion(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("llama3", tmp_path)
    changes = {"architectures": ["NewForCausalLM"], "hidden_act": "tanh", "lambda_q": 2.0, "d_ff": 160}
    edit_json(folder / "config.json", lambda config: config.update({**changes, "intermediate_size": None}))

    def change(tensors: dict[str, Any]) -> None:
        for layer in range(2):
            prefix = f"model.layers.{layer}."
            tensors[f"{prefix}self_attn.gate_proj.weight"] = np.ones((96, 96), np.float32)
            tensors[f"{prefix}self_attn.q_norm.weight"] = np.ones(96, np.float32)
        tensors["model.layers.1.mlp.lookup"] = np.ones((3, 96), np.float32)

    edited_tensors(folder, change)
    survey = read_survey(folder)
    draft = make_draft("new", survey.class_name, rank(survey, "new")[0])
    text = draft.files["new_conversion.py"]
    assert 'name="new",\n    name_map_architecture="llama",' in text
    assert '"attn_q_norm"' in text
    assert '"self_attn.gate_proj": "attn_gate",  # TODO' in text
    assert '"mlp.lookup": "TODO",  # TODO: [3, 96]' in text
    assert 'key_aliases={"intermediate_size": "d_ff"}' in text
    assert 'activations=("tanh",),' in text
    assert "needs of lambda_q" in text
    assert "only layers 1 have TODO: moe_tensors" in text


def test_an_index_is_enough(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("qwen3", tmp_path)
    names = dict.fromkeys(load_file(folder / "model.safetensors"), "model-00001-of-00001.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    survey = read_survey(folder)
    assert not survey.has_shapes
    assert rank(survey, "qwen3")[0].comparison.architecture.name == "qwen3"
    other = next(each for each in rank(survey, "new") if each.comparison.architecture.name == "mpt")
    text = make_draft("new", "NewForCausalLM", other).files["new_conversion.py"]
    compile(text, "draft", "exec")
    assert "layer_numbers" not in text


def test_names_in_a_checkpoint_are_no_code(tmp_path: Path) -> None:
    folder, evil = reference_models.checkpoint("llama3", tmp_path), 'x"\nraise SystemExit\n"""\x1b'
    changes = {"architectures": [evil], evil: 1, "hidden_act": evil}
    edit_json(folder / "config.json", lambda config: config.update(changes))
    added = {f"model.layers.0.{evil}.weight": np.ones((2, 2), np.float32)}
    edited_tensors(folder, lambda tensors: tensors.update(added))
    survey = read_survey(folder)
    draft = make_draft("new", survey.class_name, rank(survey, "new")[0])
    for text in draft.files.values():
        assert "\x1b" not in text
        assert not any(line.startswith("raise") for line in text.splitlines())
        compile(text, "draft", "exec")


# --- conversions of the user's own ---


def test_a_file_with_classes_converts_a_checkpoint(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("llama3", tmp_path)
    expected = open_checkpoint(folder)
    edit_json(folder / "config.json", lambda config: config.update(architectures=["NewForCausalLM"]))
    with pytest.raises(UnsupportedError, match="'NewForCausalLM' is not supported"):
        open_checkpoint(folder)
    survey = read_survey(folder)
    draft = make_draft("new", survey.class_name, rank(survey, "new")[0])
    assert draft.remarks == ()
    [(name, text)] = draft.files.items()
    (tmp_path / name).write_text(text)
    found = open_checkpoint(folder, conversion=tmp_path / name)
    assert found.fields == expected.fields
    assert found.tensors.keys() == expected.tensors.keys()


@pytest.mark.parametrize(("text", "kind", "message"), [
    (None, UsageError, r"conversion \(--conversion\): .*own.py: No such file"),
    ("x = 1", UsageError, "has no dict `BY_CLASS`"),
    ("BY_CLASS = {'A': 1}", UsageError, "has no dict `BY_CLASS`"),
    ("1 / 0", LocalInferError, "its code raised ZeroDivisionError"),
])  # fmt: skip
def test_invalid_conversion_files(text: str | None, kind: type[Exception], message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "own.py").write_text(text)
    with pytest.raises(kind, match=message):
        open_checkpoint(reference_models.checkpoint("llama3", tmp_path), conversion=tmp_path / "own.py")


UNFINISHED = """from dataclasses import replace

from localinfer.conversion.architectures.llama import LLAMA

BY_CLASS = {{"LlamaForCausalLM": replace(LLAMA, {})}}
"""
RENAMED = """tensor_names={"self_attn.o_proj": "attn_wobble"}, layer_tensors=tuple(
    kind.replace("attn_output", "attn_wobble") for kind in LLAMA.layer_tensors)"""


@pytest.mark.parametrize(("fields", "message"), [
    ('layer_tensors=(*LLAMA.layer_tensors, "TODO")', "a TODO is left in `layer_tensors`"),
    ('tensor_names={"mlp.lookup": "TODO"}', "a TODO is left in `tensor_names`"),
    ('shapes={"attn_output": ("n_embd", "TODO")}', "a TODO is left in `shapes`"),
    (RENAMED, "tensor attn_wobble has no entry in `shapes`"),
    ('shapes={"attn_output": ("n_embd", "n_wob")}', "size n_wob: neither a hyperparameter nor in `sizes`"),
    ('shapes={"attn_output": ("n_embd", "for_layer")}', "size for_layer: neither a hyperparameter nor in `sizes`"),
])  # fmt: skip
def test_an_unfinished_draft_is_an_error(fields: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(UNFINISHED.format(fields))
    with pytest.raises(UsageError) as raised:
        open_checkpoint(reference_models.checkpoint("llama3", tmp_path), conversion=tmp_path / "own.py")
    assert str(raised.value) == f"conversion (--conversion): {message}"
