"""A tiny Gemma 3n with MobileNetV5 for make_encoder_fixtures.py: the blocks of timm in few layers."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from timm.layers import RmsNorm2d
from timm.models import mobilenetv5
from timm.models._efficientnet_builder import decode_arch_def, round_channels
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig, Gemma3nVisionConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nMultimodalEmbedder

Grid = tuple[int, int]
BLOCKS = [
    ["er_r1_k3_s2_e2_c32", "er_r1_k3_s1_e2_c32"],
    ["uir_r1_a3_k5_s2_e2_c32", "uir_r1_a5_k0_s1_e2_c32"],
    ["uir_r1_a5_k5_s2_e2_c48", "mqa_r1_k3_h3_v2_s1_d16_c48", "uir_r1_a0_k0_s1_e2_c48"],
    ["uir_r1_a5_k5_s2_e2_c64", "mqa_r1_k3_h2_s1_d32_c64", "uir_r1_a0_k0_s1_e1_c64"],
]
N, N_TEXT, SIDE = 64, 64, 256  # values of a row, of the text model's, pixels of an image
CELL = 64  # pixels of one color, so that images compress well


class Gemma3n(torch.nn.Module):
    """The encoder and the projector, by the names of checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        tower = mobilenetv5.MobileNetV5Encoder(
            decode_arch_def(BLOCKS), stem_size=32, pad_type="same", norm_layer=RmsNorm2d,
            act_layer=mobilenetv5._GELU, layer_scale_init_value=1e-5, round_chs_fn=partial(round_channels, divisor=16),
        )  # fmt: skip
        tower.msfa = mobilenetv5.MobileNetV5MultiScaleFusionAdapter([48, 64], N, 16)
        vision, text = Gemma3nVisionConfig(hidden_size=N, vocab_size=4), Gemma3nTextConfig(hidden_size=N_TEXT)
        self.config = vision
        self.model = torch.nn.ModuleDict(
            {
                "vision_tower": torch.nn.ModuleDict({"timm_model": tower}),
                "embed_vision": Gemma3nMultimodalEmbedder(vision, text),
            }
        )

    def set_attn_implementation(self, name: str) -> None:
        """Attention of timm has no other implementation."""

    def save_pretrained(self, folder: str) -> None:
        kept = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        kept = {name: tensor for name, tensor in kept.items() if "post_projection_norm" not in name}
        save_file(kept, Path(folder, "model.safetensors"), {"format": "pt"})
        audio = {
            "conf_num_hidden_layers": 1, "conf_num_attention_heads": 1, "input_feat_size": 16, "hidden_size": 16,
        }  # fmt: skip
        config = {
            "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n",
            "text_config": {"hidden_size": N_TEXT}, "vision_config": {"hidden_size": N}, "audio_config": audio,
        }  # fmt: skip
        Path(folder, "config.json").write_text(json.dumps(config))


def pixels_of(grid: Grid, generator: np.random.Generator) -> torch.Tensor:
    """Return an image of colored squares, whose first convolution has results in this grid."""
    cells = generator.integers(0, 17, (1, 3, 2 * grid[0] // CELL, 2 * grid[1] // CELL)) / 16
    return torch.tensor(np.kron(cells, np.ones((1, 1, CELL, CELL)))).float()


def squares_of(pixels: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the squares that the first convolution reads, of pixels whose sides are even."""
    padded = torch.nn.functional.pad(pixels, (0, 1, 0, 1))
    return torch.nn.functional.unfold(padded, 3, stride=2)[0].T.contiguous().numpy()


def rows(model: Gemma3n, pixels: torch.Tensor, _grid: Grid) -> torch.Tensor:
    found = model.model["vision_tower"]["timm_model"](pixels)
    flat = found.reshape(1, N, -1).permute(0, 2, 1) * N**0.5
    return model.model["embed_vision"](inputs_embeds=flat)[0]
