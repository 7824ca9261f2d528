"""Small models with conformers and with several encoders, for make_sound_projector_fixtures.py, and the rows that
transformers computes with them."""

import importlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
Tensors = Mapping[str, torch.Tensor]


class Lfm2Audio(torch.nn.Module):
    """LFM2-Audio: its encoder is that of Parakeet without a scale, and a network follows."""

    names = (
        ("subsampling.layers.", "pre_encode.conv."), ("subsampling.linear.", "pre_encode.out."),
        (".relative_k_proj.", ".linear_pos."), (".bias_", ".pos_bias_"), (".o_proj.", ".linear_out."),
        (".q_proj.", ".linear_q."), (".k_proj.", ".linear_k."), (".v_proj.", ".linear_v."),
        (".conv.norm.", ".conv.batch_norm."),
    )  # fmt: skip

    def __init__(self, n_out: int, **config: Any) -> None:
        super().__init__()
        self.n_out, self.config = n_out, transformers.ParakeetEncoderConfig(**config, scale_input=False)
        self.conformer = transformers.ParakeetEncoder(self.config)
        n = self.config.hidden_size
        linear = torch.nn.Linear
        parts = torch.nn.LayerNorm(n), linear(n, n_out), torch.nn.GELU(), linear(n_out, n_out)
        self.audio_adapter = torch.nn.Sequential(*parts)

    def set_attn_implementation(self, name: str) -> None:
        self.conformer.set_attn_implementation(name)

    def save_pretrained(self, folder: str) -> None:
        kept = {f"lfm.{name}": torch.zeros(1) for name in ("embed_tokens.weight",)}
        for name, tensor in self.state_dict().items():
            for old, new in self.names:
                name = name.replace(old, new)
            is_part = name.startswith("audio_adapter")
            kept[name.replace("audio_adapter.", "audio_adapter.model.") if is_part else name] = tensor.contiguous()
        kept["audio_embedding.embedding.weight"] = torch.zeros(32, self.n_out)
        kept["audio_embedding.embedding_norm.weight"] = torch.zeros(self.n_out)
        kept["audio_embedding.to_logits.weight"] = torch.zeros(32, self.n_out)
        save_file(kept, Path(folder, "model.safetensors"), {"format": "pt"})
        config = {
            "architectures": ["Lfm2AudioForConditionalGeneration"],
            "lfm": {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": self.n_out},
            "encoder": {
                "feat_in": self.config.num_mel_bins, "n_layers": self.config.num_hidden_layers,
                "d_model": self.config.hidden_size, "n_heads": self.config.num_attention_heads,
            },
        }  # fmt: skip
        Path(folder, "config.json").write_text(json.dumps(config))


def lfm2_audio_rows(model: Lfm2Audio, features: torch.Tensor, _frames: int) -> torch.Tensor:
    return model.audio_adapter(model.conformer(features.mT).last_hidden_state)[0]


SMALL_CONFORMER = {  # the converter needs more layers than numbers of convolutions
    "hidden_size": 32, "num_hidden_layers": 7, "num_attention_heads": 2, "intermediate_size": 48,
    "subsampling_conv_channels": 32, "num_mel_bins": 32,
}  # fmt: skip
ODD_CONFORMER = {
    "hidden_size": 32, "num_hidden_layers": 8, "num_attention_heads": 1, "intermediate_size": 40,
    "subsampling_conv_channels": 64, "num_mel_bins": 24, "conv_kernel_size": 5,
}  # fmt: skip


def granite_speech(window: int, rate: int, projector: dict[str, int], kind: str = "", **encoder: Any) -> Any:
    projector_config = {
        "model_type": "blip_2_qformer", "num_hidden_layers": 2, "cross_attention_frequency": 1,
        "encoder_hidden_size": encoder["hidden_dim"], "hidden_size": encoder["hidden_dim"], **projector,
    }  # fmt: skip
    text = {"model_type": "granite", **{key: value for key, value in TEXT.items() if key != "head_dim"}}
    config = getattr(transformers, f"GraniteSpeech{kind}Config")(
        text_config=text, encoder_config=encoder, projector_config=projector_config, window_size=window,
        downsample_rate=rate, has_lora_adapter=False,
    )  # fmt: skip
    return getattr(transformers, f"GraniteSpeech{kind}ForConditionalGeneration")(config)


def granite_speech_rows(model: Any, features: torch.Tensor, _frames: int) -> torch.Tensor:
    return model.model.get_audio_features(features.mT).pooler_output[0]


def names_of_granite_speech(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors with the names of published checkpoints."""
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def qwen25_omni(**audio: int) -> Any:
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 1, "fullatt_block_indexes": [1],
        "out_hidden_size": 64,
    }  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [8, 4, 4]}
    config = transformers.Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "rope_parameters": rope}, audio_config={**audio, "output_dim": 64}, vision_config=vision
    )
    return transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)


def qwen25_omni_rows(model: Any, features: torch.Tensor, frames: int) -> torch.Tensor:
    return model.model.audio_tower(features[0, :, :frames], torch.tensor([frames])).last_hidden_state


def names_of_thinker(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors with the names of whole checkpoints."""
    return {f"thinker.{name}": tensor for name, tensor in tensors.items()}


def config_of_thinker(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a whole checkpoint."""
    config["audio_config"] |= {"num_hidden_layers": config["audio_config"]["encoder_layers"]}
    return {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "thinker_config": config}


NEMOTRON_NAMES = {
    "subsampling.layers.": "a.conv1d.", "subsampling.linear.": "a.pre_encode.out.", "layers.": "a.blk.",
    "self_attn.relative_k_proj": "linear_pos", "self_attn.bias_": "pos_bias_", "self_attn.o_proj": "attn_out",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "norm_self_att": "ln1", "norm_out": "ln2", "norm_feed_forward1": "ffn_norm", "norm_feed_forward2": "ffn_norm_1",
    "feed_forward1.linear1": "ffn_up", "feed_forward1.linear2": "ffn_down", "feed_forward2.linear1": "ffn_up_1",
    "feed_forward2.linear2": "ffn_down_1", "conv.depthwise_conv": "conv_dw", "conv.pointwise_conv": "conv_pw",
    "conv.norm.running_": "conv_norm_", "conv.norm": "conv_norm",
}  # fmt: skip


class NemotronOmni(torch.nn.Module):
    """The sounds of Nemotron Omni: Parakeet's encoder and a projector. llama.cpp converts them together with an image
    encoder of one large size only, so this class writes the file as the converter does."""

    def __init__(self, n_hidden: int, **config: Any) -> None:
        super().__init__()
        fixed = {"scale_input": False, "attention_bias": False, "convolution_bias": False}
        self.config = transformers.ParakeetEncoderConfig(**config, **fixed)
        self.encoder = transformers.ParakeetEncoder(self.config)
        module = importlib.import_module("transformers.models.nemotron_h_omni.modeling_nemotron_h_omni")
        self.projector = module.NemotronH_Omni_Reasoning_V3MultiModalProjector(self.config.hidden_size, n_hidden, 64)

    def set_attn_implementation(self, name: str) -> None:
        self.encoder.set_attn_implementation(name)

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the tensors of the file."""
        found = {f"mm.a.mlp.{number}.weight": getattr(self.projector, f"linear_{number}").weight for number in (1, 2)}
        found["mm.a.norm_pre.weight"] = self.projector.layer_norm.weight
        for name, tensor in self.encoder.state_dict().items():
            for old, new in NEMOTRON_NAMES.items():
                name = name.replace(old, new)
            if "a.conv1d" in name and name.endswith("bias"):
                tensor = tensor[None, :, None, None]
            elif "conv_dw" in name:
                tensor = tensor[None].permute(0, 2, 1, 3)
            elif "conv_pw" in name:
                tensor = tensor[:, :, 0]
            if not name.endswith("num_batches_tracked"):
                found[name] = tensor
        extractor = transformers.ParakeetFeatureExtractor(feature_size=self.config.num_mel_bins)
        found["a.mel_filters"] = extractor.mel_filters[None]
        found["a.window"] = torch.hann_window(400, periodic=False)
        return {name: tensor.detach().float().numpy() for name, tensor in found.items()}

    def file(self) -> bytes:
        """Return the projector file."""
        config = self.config
        counts = {
            "projection_dim": 64, "embedding_length": config.hidden_size, "num_mel_bins": config.num_mel_bins,
            "feed_forward_length": config.intermediate_size, "block_count": config.num_hidden_layers,
            "attention.head_count": config.num_attention_heads, "subsampling_factor": config.subsampling_factor,
            "conv_kernel_size": config.conv_kernel_size,
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            writer = gguf.GGUFWriter(Path(folder, "mmproj.gguf"), "clip")
            writer.add_type("mmproj")
            writer.add_bool("clip.has_audio_encoder", True)
            writer.add_string("clip.audio.projector_type", "parakeet")
            writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
            for key, count in counts.items():
                writer.add_uint32(f"clip.audio.{key}", count)
            for name, tensor in self.tensors().items():
                writer.add_tensor(name, np.ascontiguousarray(tensor))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            return Path(folder, "mmproj.gguf").read_bytes()


def nemotron_omni_rows(model: NemotronOmni, features: torch.Tensor, frames: int) -> torch.Tensor:
    """Return the rows of the frames alone, behind which transformers has a masked one."""
    padded = torch.nn.functional.pad(features.mT, (0, 0, 0, 1))
    mask = torch.arange(frames + 1)[None] < frames
    rows = model.projector(model.encoder(padded, mask).last_hidden_state)[0]
    return rows[: -(-frames // 8)]
