"""Tiny models of the Gemma family with encoders, for make_encoder_fixtures.py and make_sound_projector_fixtures.py."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from encoder_families.spec import TEXT, Grid
from safetensors.torch import save_file
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nAudioEncoder, Gemma3nMultimodalEmbedder

import localinfer

ODD = {  # sizes that kernels read with padding
    "hidden_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24,
    "intermediate_size": 44,
}  # fmt: skip
UNCHANGED = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]}
ODD_SOUNDS = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "subsampling_conv_channels": [64, 32],
    "conv_kernel_size": 3, "output_proj_dims": 96, "use_clipped_linears": False,
}  # fmt: skip


def gemma4(audio: dict[str, Any] | None = None, **vision: Any) -> Any:
    """Return a model whose products are clipped at bounds that some values exceed, and whose rows are standardized."""
    config = transformers.Gemma4Config(
        text_config={**TEXT, "layer_types": ["full_attention"], "global_head_dim": 32},
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 64,
            "use_clipped_linears": True, "standardize": True, **vision,
        },
        audio_config=audio,
    )  # fmt: skip
    model = transformers.Gemma4ForConditionalGeneration(config)
    fill_buffers(model)
    return model


def unclipped_gemma4() -> Any:
    """Return a model that neither clips nor standardizes."""
    return gemma4(use_clipped_linears=False, standardize=False, **ODD)


def hearing_gemma4(**changes: Any) -> Any:
    """Return a model with an encoder of sounds, too."""
    audio = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "subsampling_conv_channels": [32, 32],
        "output_proj_dims": 64, "input_feat_size": 32, **changes,
    }  # fmt: skip
    return gemma4(audio)


def odd_hearing_gemma4() -> Any:
    return hearing_gemma4(**ODD_SOUNDS, input_feat_size=64)


def fill_buffers(model: torch.nn.Module) -> None:
    """Give the bounds and the means and scales of columns values of a few bits."""
    generator = torch.Generator().manual_seed(21)
    for name, tensor in model.named_buffers():
        if name.endswith(("_min", "_max")):
            size = torch.randint(8, 12, (), generator=generator) / (4 if "input" in name else 8)
            tensor.copy_(-size if name.endswith("_min") else size)
        elif name.endswith(("std_bias", "std_scale")):
            tensor.copy_(torch.randint(1, 8, tensor.shape, generator=generator) / 8)


def gemma4_rows(model: Any, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Patches are in the order [y][x][channel]; positions are columns, then rows."""
    (rows, columns), size = grid, pixels.shape[2] // grid[0]
    patches = pixels[0].reshape(3, rows, size, columns, size).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
    places = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1)
    return model.model.get_image_features(patches, places.reshape(1, -1, 2)).pooler_output[0]


def gemma4_sound_rows(model: Any, features: torch.Tensor, _frames: int) -> torch.Tensor:
    mask = torch.ones(features.shape[0], features.shape[2], dtype=torch.bool)
    return model.model.get_audio_features(features.mT, mask).pooler_output[0]


def unified_gemma4() -> Any:
    """Return a model that reads pixels and samples without encoders."""
    config = transformers.Gemma4UnifiedConfig(
        text_config={**TEXT, "layer_types": ["full_attention"], "global_head_dim": 32},
        vision_config={
            "patch_size": 4, "mm_embed_dim": 64, "mm_posemb_size": 24, "output_proj_dims": 64, "pooling_kernel_size": 3
        },
        audio_config={"audio_embed_dim": 640},
    )  # fmt: skip
    return transformers.Gemma4UnifiedForConditionalGeneration(config)


def unified_sound_rows(model: Any, features: torch.Tensor, _frames: int) -> torch.Tensor:
    return model.model.get_audio_features(features.mT, None).pooler_output[0]


class HearingGemma3n(torch.nn.Module):
    """The encoder of sounds of Gemma 3n and its projector, by the names of checkpoints. llama.cpp's converter has no
    name for two of the norms, so localinfer converts it."""

    n_rows, n_text, vocabulary = 188, 64, 4

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = transformers.Gemma3nAudioConfig(vocab_size=self.vocabulary, vocab_offset=0, **config)
        text = transformers.Gemma3nTextConfig(hidden_size=self.n_text)
        self.model = torch.nn.ModuleDict(
            {
                "audio_tower": Gemma3nAudioEncoder(self.config),
                "embed_audio": Gemma3nMultimodalEmbedder(self.config, text),
            }
        )

    def set_attn_implementation(self, name: str) -> None:
        """Attention has no other implementation."""

    def file(self) -> bytes:
        """Return the projector file."""
        with tempfile.TemporaryDirectory() as folder:
            tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
            save_file(tensors, Path(folder, "model.safetensors"), {"format": "pt"})
            config = {
                "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n",
                "text_config": {"hidden_size": self.n_text}, "audio_config": self.config.to_dict(),
            }  # fmt: skip
            Path(folder, "config.json").write_text(json.dumps(config))
            out = Path(folder, "mmproj.gguf")
            localinfer.convert(folder, out, type="F32", mmproj=True)
            return out.read_bytes()


def gemma3n_sound_rows(model: HearingGemma3n, features: torch.Tensor, _frames: int) -> torch.Tensor:
    """Return the rows of the sound, completed as the model does."""
    tower, embed = model.model["audio_tower"], model.model["embed_audio"]
    states = tower(features.mT, torch.zeros(features.shape[0], features.shape[2], dtype=torch.bool)).last_hidden_state
    silence = embed(input_ids=torch.tensor([[model.vocabulary - 1]]))[0]
    rows = embed(inputs_embeds=states)[0]
    return torch.cat([rows, silence.expand(model.n_rows - len(rows), -1)])
