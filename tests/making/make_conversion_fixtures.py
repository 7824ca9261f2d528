"""Write tests/data/conversion.json.xz: what llama.cpp's own conversion produces for the reference models and draft
heads.

    python tests/making/make_conversion_fixtures.py path/to/llama.cpp             # all of them
    python tests/making/make_conversion_fixtures.py path/to/llama.cpp gemma2 phi3  # these; the others remain

Needs torch and transformers, and llama.cpp's sources. Tokenizers have tests of their own. Each entry has the keys of
the architecture and the tensors in the form of `reference_models.summary`, or the reason why there are none.
"qwen35; head" is the reference model qwen35 with an MTP layer, or this layer without the model.
"""

import json
import logging
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import transformers

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("", "models"))
import draft_head_models
import recorded
import reference_models
import separate_heads

# whose keys the classes of newer transformers change
CHANGED = (
    "bailing_hybrid", "laguna", "mimo_v2_flash", "minimax_m3_vl", "nemotron_h", "nomic_bert", "qwen4_exp_text",
)  # fmt: skip


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    logging.disable()
    transformers.utils.logging.set_verbosity_error()
    names = sys.argv[2:]
    remaining = recorded.read("conversion") if names else {}
    heads = [name for name in draft_head_models.NAMES if name not in draft_head_models.DROPPED]
    known = [*reference_models.ALL, *(f"{name}; head" for name in heads), *separate_heads.NAMES]
    actual = remaining | {name: converted(name) for name in names or known}
    recorded.write("conversion", dict(sorted(actual.items())))


def converted(name: str) -> dict[str, Any] | str:
    """Return the keys and tensors of llama.cpp's conversion, or the error."""
    from conversion import get_model_class  # finds the `gguf` package of the sources
    from conversion.base import ModelBase, TextModel, gguf

    with tempfile.TemporaryDirectory() as folder:
        is_separate = name in separate_heads.NAMES
        reference, _, head = (separate_heads.read_description(name)["model"] if is_separate else name).partition("; ")
        target = (
            draft_head_models.checkpoint(reference, Path(folder), has_embeddings=True)
            if head
            else reference_models.checkpoint(reference, Path(folder))
        )
        checkpoint = separate_heads.checkpoint(name, Path(folder)) if is_separate else target
        out = Path(folder) / "model.gguf"
        values = with_older_keys(ModelBase.load_hparams(checkpoint, False))
        if values["model_type"] in CHANGED or name in separate_heads.DFLASH:
            values = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        if values["architectures"] == ["LlavaNextForConditionalGeneration"]:  # whose text model it wants by itself
            values["architectures"] = ["GraniteForCausalLM"]
        try:
            model_class = get_model_class(values["architectures"][0])
        except NotImplementedError as error:
            return f"NotImplementedError: {error}"
        model_class.no_mtp, model_class.mtp_only = not head, bool(head) and reference in draft_head_models.ALONE
        gguf.TensorNameMap.block_mappings_cfg = dict(block_names())
        prepare_class(model_class)
        if name == "deepseek3; head":  # the conversion omits MTP layers that llama.cpp supports
            model_class.skip_mtp = False
            model_class.__init__ = with_further_blocks(model_class.__init__, gguf)
        inner = [each for each in vars(model_class).values() if isinstance(each, type)]  # some classes delegate to them
        for each in (TextModel, *(base for kind in (model_class, *inner) for base in kind.__mro__)):
            if "set_vocab" in vars(each):
                each.set_vocab = lambda self: None
        try:
            model_class(
                checkpoint, gguf.LlamaFileType.ALL_F32, out, hparams=values,
                target_model_dir=target if is_separate else None,
            ).write()  # fmt: skip
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:100]}"
        file = gguf.GGUFReader(out)
        written = file.fields["general.architecture"].contents()
        if not is_separate and written != reference_models.architecture(reference):
            return f"its architecture is {written} there"
        return {
            "keys": {key: field.contents() for key, field in file.fields.items() if key.startswith(f"{written}.")},
            "tensors": reference_models.summary(
                {each.name: (each.shape.tolist()[::-1], each.data) for each in file.tensors}
            ),
        }


def prepare_class(model_class: Any) -> None:
    """Make a class of llama.cpp's conversion forget the checkpoint before, and accept tiny checkpoints."""
    if hasattr(model_class, "_is_tokenizer_xlmroberta"):  # which must not be one of bytes
        model_class._is_tokenizer_xlmroberta = lambda self: False
    if hasattr(model_class, "_lora_files"):
        model_class._lora_files, model_class._lora_names = {}, []
    if hasattr(model_class, "lerp_weights"):
        model_class.lerp_weights = {}
    if hasattr(model_class, "_write_mxfp4_expert_tensor"):  # published checkpoints have no other experts
        model_class._write_mxfp4_expert_tensor = write_float_experts


@cache
def block_names() -> dict[Any, Any]:
    """Return the names of tensors of a layer. The conversion of Arctic replaces some for all that follow."""
    from conversion.base import gguf

    return dict(gguf.TensorNameMap.block_mappings_cfg)


def write_float_experts(self: Any, bid: int, kind: str, tensor: Any) -> list[str]:
    """Write the experts of a layer of DeepSeek-V4, one of their three matrices, without packing them."""
    from conversion.base import LazyTorchTensor

    names = [f"layers.{bid}.ffn.experts.{each}.{kind}.weight" for each in range(self.hparams["n_routed_experts"])]
    experts = np.stack([LazyTorchTensor.to_eager(self.model_tensors[name]()).numpy() for name in names])
    self.gguf_writer.add_tensor(self.format_tensor_name(tensor, bid), experts)
    return names


def with_further_blocks(init: Any, gguf: Any) -> Any:
    """Wrap a class's __init__ so that the instance maps the names of one more block."""

    def further(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.block_count += 1
        self.tensor_map = gguf.get_tensor_name_map(self.model_arch, self.block_count)

    return further


def with_older_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the keys from before transformers 5, which the conversion needs."""
    values.setdefault("rotary_pct", (values.get("rope_parameters") or {}).get("partial_rotary_factor", 1.0))
    values.setdefault("n_ctx", values.get("n_positions"))
    if values.get("multi_query") and not values.get("new_decoder_architecture"):
        values["num_kv_heads"] = 1
    if values["model_type"] == "granitemoehybrid":
        words = {"linear_attention": "mamba", "full_attention": "attention"}
        values["layer_types"] = [words.get(kind, kind) for kind in values["layer_types"]]
    if values["model_type"] == "exaone":
        values["activation_function"] = values["hidden_act"]
    required = {"gemma4_text": "moe_intermediate_size", "rwkv6": "intermediate_size"}.get(values["model_type"])
    return ({required: None} if required else {}) | {key: value for key, value in values.items() if value is not None}


if __name__ == "__main__":
    main()
