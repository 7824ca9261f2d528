"""Write tests/data/projectors.json.xz: tiny checkpoints with encoders, and what llama.cpp's converter makes of them.

    python tests/making/make_projector_fixtures.py path/to/llama.cpp              # all of them
    python tests/making/make_projector_fixtures.py path/to/llama.cpp gemma3 glm4v  # these; the others remain

Needs torch, torchvision and transformers, and llama.cpp's sources. Of the text model only the embedding is kept.
"""

import json
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import transformers
from safetensors import safe_open

sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]  # before the installed `gguf` package
sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("models", "harness", "."))

import recorded  # noqa: E402
from encoder_families import minicpm, qwen4  # noqa: E402
from image_processors import HALF  # noqa: E402
from projector_checkpoints import (  # noqa: E402
    comparable,
    descriptions,
    digest_of_all,
    summary,
    write_checkpoint,
)
from sound_checkpoints import CLIP, ROPE, SOUNDS, TEXT, layers, with_bias  # noqa: E402

VISION = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
QWEN_VISION = {
    "depth": 4, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
SIGLIP = {"image_mean": HALF, "image_std": HALF}
KINDS = ("F32", "F16")
BREAK = {"added_tokens": [{"id": 12, "content": "[IMG_BREAK]"}]}
PLAIN_TOWER = r"\bvision_tower\.(?!vision_model)"  # published checkpoints have another name in between

NAMES = {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}

# name: the class of the configuration, its values, preprocessor_config.json
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("Gemma3Config", {"text_config": TEXT, "vision_config": VISION, "mm_tokens_per_image": 4}, SIGLIP),
    "gemma3 of other size": (
        "Gemma3Config", {"text_config": TEXT, "vision_config": VISION}, {**SIGLIP, "image_seq_length": 4},
    ),
    "gemma4": (
        "Gemma4Config",
        {
            "text_config": {**TEXT, "hidden_size_per_layer_input": 0, "layer_types": ["full_attention"]},
            "audio_config": {
                "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "output_proj_dims": 48,
                "subsampling_conv_channels": [32, 16],
            },
            "vision_config": {
                **VISION, "num_key_value_heads": 2, "head_dim": 32, "position_embedding_size": 20,
                "use_clipped_linears": True, "standardize": True,
            },
        },
        {"image_mean": [0.0] * 3, "image_std": [1.0] * 3},
    ),
    "gemma4 of other size": (
        "Gemma4Config",
        {
            "text_config": {**TEXT, "hidden_size_per_layer_input": 0, "layer_types": ["full_attention"]},
            "audio_config": None,
            "vision_config": {
                **VISION, "num_key_value_heads": 2, "head_dim": 32, "position_embedding_size": 20,
            },
        },
        {"image_mean": [0.0] * 3, "image_std": [1.0] * 3},
    ),
    "gemma4 unified": (
        "Gemma4UnifiedConfig",
        {
            "text_config": {**TEXT, "layer_types": ["full_attention"]},
            "audio_config": {"audio_embed_dim": 640},
            "vision_config": {"patch_size": 4, "mm_embed_dim": 64, "mm_posemb_size": 20, "output_proj_dims": 64},
        },
        {"image_mean": [0.0] * 3, "image_std": [1.0] * 3},
    ),
    "idefics3": (
        "Idefics3Config", {"text_config": {**TEXT, "model_type": "llama", "pad_token_id": 1}, "vision_config": VISION},
        {**SIGLIP, "size": {"longest_edge": 224}},
    ),
    "smolvlm": (
        "SmolVLMConfig",
        {"text_config": {**TEXT, "model_type": "llama", "pad_token_id": 1}, "vision_config": VISION, "scale_factor": 4},
        SIGLIP,
    ),
    "qwen2vl": ("Qwen2VLConfig", {"text_config": {**TEXT, **ROPE}, "vision_config": QWEN_VISION}, CLIP),
    "qwen2.5vl": (
        "Qwen2_5_VLConfig",
        {
            "text_config": {**TEXT, **ROPE},
            "vision_config": {
                "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
                "fullatt_block_indexes": [1, 3],
            },
        },
        CLIP,
    ),
    "exaone4.5": (
        "Exaone4_5_Config",
        {
            "text_config": {**TEXT, "model_type": "exaone4"},
            "vision_config": {
                "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_key_value_heads": 2,
                "out_hidden_size": 64, "fullatt_block_indexes": [1, 3],
            },
        },
        {**CLIP, "min_pixels": 3136, "max_pixels": 12845056},
    ),
    "qwen3vl": (
        "Qwen3VLConfig",
        {
            "text_config": TEXT,
            "vision_config": {
                "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
                "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2],
            },
        },
        SIGLIP,
    ),
    "qwen4exp": (
        "Qwen4ExpConfig",
        {
            "text_config": qwen4.TEXT,
            "vision_config": {
                "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
                "num_position_embeddings": 64,
            },
        },
        SIGLIP,
    ),
    **{
        f"minicpm-v4.6{name}": (
            "MiniCPMV4_6Config",
            {"text_config": minicpm.QWEN35, "vision_config": VISION, "insert_layer_id": 1},
            {**SIGLIP, "scale_resolution": 448, "downsample_mode": mode},
        )
        for name, mode in (("", "16x"), (" in 4x mode", "4x"))
    },
    "pixtral": (
        "LlavaConfig",
        {
            "text_config": {**TEXT, "model_type": "mistral"},
            "vision_config": {**VISION, "model_type": "pixtral", "patch_size": 16, "image_size": 64, "head_dim": 32},
        },
        CLIP,
    ),
    "mistral3": (
        "Mistral3Config",
        {
            "text_config": {**TEXT, "model_type": "mistral"}, "spatial_merge_size": 2,
            "vision_config": {**VISION, "model_type": "pixtral", "head_dim": 32},
        },
        CLIP,
    ),
    "lightonocr": (
        "LightOnOcrConfig",
        {
            "text_config": {**TEXT, "model_type": "qwen3"}, "spatial_merge_size": 2,
            "vision_config": {**VISION, "model_type": "pixtral", "head_dim": 32},
        },
        CLIP,
    ),
    "lfm2": (
        "Lfm2VlConfig",
        {
            "text_config": {**TEXT, "model_type": "lfm2", "layer_types": ["full_attention"]},
            "vision_config": {**VISION, "patch_size": 16, "num_patches": 16, "vision_use_head": False},
        },
        SIGLIP,
    ),
    "llama4": (
        "Llama4Config",
        {
            "text_config": {**TEXT, "num_local_experts": 2, "intermediate_size_mlp": 32},
            "vision_config": {
                **VISION, "intermediate_size": 256, "vision_output_dim": 64, "projector_input_dim": 64,
                "projector_output_dim": 64,
            },
        },
        SIGLIP,
    ),
    "glm4v": (
        "Glm4vConfig",
        {
            "text_config": {**TEXT, "pad_token_id": 1},
            "vision_config": {**VISION, "depth": 4, "num_heads": 2, "out_hidden_size": 64, "hidden_act": "silu"},
        },
        CLIP,
    ),
    "glm5v": (
        "Glm5NextConfig",
        {
            "text_config": {
                **TEXT, "num_key_value_heads": TEXT["num_attention_heads"], "head_dim": 0, "pad_token_id": 1,
            },
            "vision_config": {
                **VISION, "depth": 4, "num_heads": 2, "out_hidden_size": 64, "projection_intermediate_size": 96,
                "swiglu_limit": 10.0,
            },
        },
        {**CLIP, "patch_size": 14, "merge_size": 2, "min_image_tokens": 16, "max_image_tokens": 8000},
    ),
    "muse-glimmer": (
        "MuseGlimmerConfig",
        {
            "text_config": TEXT, "out_hidden_size": 256, "projector_hidden_size": 96,
            "vision_config": {**VISION, "pos_emb_height": 2, "pos_emb_width": 2},
        },
        CLIP,
    ),
    "qwen2audio": (
        "Qwen2AudioConfig",
        {
            "text_config": {**TEXT, "model_type": "qwen2"},
            "audio_config": {
                "d_model": 64, "encoder_layers": 4, "encoder_attention_heads": 2, "encoder_ffn_dim": 96,
                "num_mel_bins": 80, "max_source_positions": 50,
            },
        },
        {},
    ),
    "voxtral": (
        "VoxtralConfig",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "audio_config": {
                "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 256,
                "num_mel_bins": 128, "max_source_positions": 52,
            },
        },
        {},
    ),
}  # fmt: skip


KIMI_STEM = {"vision_tower.patch_embed.proj": [64, 3, 14, 14], "vision_tower.encoder.final_layernorm": [64]}
KIMI_LAYERS = layers(4, with_bias({
    f"vision_tower.encoder.blocks.{{}}.{name}": shape
    for name, shape in {
        "wqkv": [192, 64], "wo": [64, 64], "norm0": [64], "norm1": [64], "mlp.fc0": [96, 64], "mlp.fc1": [64, 96],
    }.items()
}))  # fmt: skip

# Checkpoints of classes that transformers lacks, by the names in published ones.
OTHERS: dict[str, dict[str, Any]] = {
    "internvl": {
        "files": {
            "config.json": {
                "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5,
                "min_dynamic_patch": 1, "max_dynamic_patch": 12, "llm_config": TEXT, "hidden_size": 64,
                "vision_config": {
                    **VISION, "architectures": ["InternVisionModel"], "hidden_act": "gelu", "layer_norm_eps": 1e-6,
                },
            },
            "preprocessor_config.json": CLIP,
        },
        "tensors": {
            "vision_model.embeddings.class_embedding": [1, 1, 64],
            "vision_model.embeddings.position_embedding": [1, 17, 64],
            **with_bias({
                "vision_model.embeddings.patch_embedding": [64, 3, 14, 14],
                "mlp1.0": [256], "mlp1.1": [64, 256], "mlp1.3": [64, 64],
            }),
            **layers(4, {
                "vision_model.encoder.layers.{}.ls1": [64], "vision_model.encoder.layers.{}.ls2": [64],
                **with_bias({
                    f"vision_model.encoder.layers.{{}}.{name}": shape
                    for name, shape in {
                        "attn.qkv": [192, 64], "attn.proj": [64, 64], "norm1": [64], "norm2": [64],
                        "mlp.fc1": [96, 64], "mlp.fc2": [64, 96],
                    }.items()
                }),
            }),
        },
    },
    "kimik25": {
        "files": {
            "config.json": {
                "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": TEXT,
                "vision_config": {
                    **VISION, **{f"vt_{key}": value for key, value in VISION.items()}, "init_pos_emb_height": 6,
                    "init_pos_emb_width": 4, "merge_kernel_size": [2, 2],
                    "projector_hidden_act": "gelu", "projector_ln_eps": 1e-5,
                },
            },
            "preprocessor_config.json": {"media_proc_cfg": {**SIGLIP, "in_patch_limit": 4096}},
        },
        "tensors": {
            "vision_tower.patch_embed.pos_emb.weight": [6, 4, 64],
            **with_bias({"mm_projector.pre_norm": [64], "mm_projector.proj.0": [256, 256],
                         "mm_projector.proj.2": [64, 256], **KIMI_STEM}),
            **KIMI_LAYERS,
        },
    },
    "kimivl": {
        "files": {
            "config.json": {
                "architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "text_config": TEXT,
                "vision_config": {**VISION, "model_type": "moonvit"},
            },
            "preprocessor_config.json": SIGLIP,
        },
        "tensors": {
            "vision_tower.patch_embed.pos_emb.weight": [4, 4, 64],
            **with_bias({
                **KIMI_STEM, "multi_modal_projector.pre_norm": [64], "multi_modal_projector.linear_1": [256, 256],
                "multi_modal_projector.linear_2": [64, 256],
            }),
            **KIMI_LAYERS,
        },
    },
    "minimax_m3": {
        "files": {
            "config.json": {
                "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
                "text_config": TEXT, "vision_config": {
                    **VISION, "hidden_size": 160, "num_attention_heads": 2, "layer_norm_eps": 1e-5,
                    "img_token_compression_config": {"spatial_merge_size": 2},
                },
            },
            "preprocessor_config.json": CLIP,
        },
        "tensors": {
            "vision_tower.vision_model.embeddings.patch_embedding.weight": [160, 3, 2, 14, 14],
            **with_bias({
                "vision_tower.vision_model.pre_layrnorm": [160], "multi_modal_projector.linear_1": [64, 160],
                "multi_modal_projector.linear_2": [64, 64], "patch_merge_mlp.linear_1": [64, 256],
                "patch_merge_mlp.linear_2": [64, 64],
            }),
            **layers(4, with_bias({
                f"vision_tower.vision_model.encoder.layers.{{}}.{name}": shape
                for name, shape in {
                    **{f"self_attn.{each}_proj": [160, 160] for each in ("q", "k", "v", "out")},
                    "layer_norm1": [160], "layer_norm2": [160], "mlp.fc1": [96, 160], "mlp.fc2": [160, 96],
                }.items()
            })),
        },
    },
    "nemotron_v2_vl": {
        "files": {
            "config.json": {
                "architectures": ["NemotronH_Nano_VL_V2"], "model_type": "NemotronH_Nano_VL_V2", "llm_config": TEXT,
                "force_image_size": 56, "downsample_ratio": 0.5, "vision_config": VISION, "hidden_size": 64,
            },
            "preprocessor_config.json": CLIP,
        },
        "tensors": {
            "mlp1.0.weight": [256], "mlp1.1.weight": [96, 256], "mlp1.3.weight": [64, 96],
            "vision_model.radio_model.input_conditioner.norm_mean": [3, 1, 1],
            "vision_model.radio_model.model.patch_generator.pos_embed": [1, 16, 64],
            "vision_model.radio_model.model.patch_generator.cls_token.token": [10, 64],
            "vision_model.radio_model.model.patch_generator.embedder.weight": [64, 588],
            "vision_model.radio_model.model.patch_generator.video_embedder.weight": [64, 1176],
            **layers(4, with_bias({
                f"vision_model.radio_model.model.blocks.{{}}.{name}": shape
                for name, shape in {
                    "attn.qkv": [192, 64], "attn.proj": [64, 64], "norm1": [64], "norm2": [64], "mlp.fc1": [96, 64],
                    "mlp.fc2": [64, 96],
                }.items()
            })),
        },
    },
    "gemma3n": {
        "files": {
            "config.json": {
                "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "text_config": TEXT,
                "vision_config": {"hidden_size": 64},
                "audio_config": {
                    "conf_num_hidden_layers": 1, "conf_num_attention_heads": 1, "input_feat_size": 16,
                    "hidden_size": 16,
                },
            },
            "preprocessor_config.json": {**SIGLIP, "size": {"height": 512, "width": 512}, "image_seq_length": 256},
        },
        "without": "clip.audio.|clip.has_audio_encoder",  # localinfer does not convert it
        "tensors": {
            "model.embed_vision.embedding.weight": [4, 64], "model.embed_vision.hard_embedding_norm.weight": [64],
            "model.embed_vision.soft_embedding_norm.weight": [64],
            "model.embed_vision.embedding_projection.weight": [64, 64],
            **{
                f"model.vision_tower.timm_model.{name}": shape
                for name, shape in {
                    "conv_stem.conv.weight": [16, 3, 3, 3], "conv_stem.conv.bias": [16], "conv_stem.bn.weight": [16],
                    "blocks.0.0.conv_exp.weight": [32, 16, 3, 3], "blocks.0.0.bn1.weight": [32],
                    "blocks.0.0.conv_pwl.weight": [32, 32, 1, 1], "blocks.0.0.bn2.weight": [32],
                    "blocks.1.0.dw_start.conv.weight": [32, 1, 3, 3], "blocks.1.0.dw_start.bn.weight": [32],
                    "blocks.1.0.layer_scale.gamma": [32], "blocks.2.1.norm.weight": [32],
                    "blocks.2.1.attn.query.proj.weight": [64, 32, 1, 1],
                    "blocks.2.1.attn.key.down_conv.weight": [32, 1, 3, 3], "blocks.2.1.attn.key.norm.weight": [32],
                    "msfa.ffn.pw_exp.conv.weight": [64, 32, 1, 1], "msfa.ffn.pw_exp.bn.weight": [64],
                    "msfa.ffn.pw_proj.conv.weight": [64, 64, 1, 1], "msfa.norm.weight": [64],
                }.items()
            },
        },
    },
    "deepseekocr": {
        "files": {
            "config.json": {
                "architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2", "language_config": TEXT,
                "vision_config": {
                    "image_size": 1024, "mlp_ratio": 3.7362, "width": {
                        "clip-l-14-224": {"heads": 2, "image_size": 224, "layers": 4, "patch_size": 14, "width": 64},
                        "sam_vit_b": {"heads": 2, "layers": 2, "width": 32, "downsample_channels": [32, 64]},
                    },
                },
            },
            "preprocessor_config.json": SIGLIP,
        },
        "tensors": {
            "model.sam_model.pos_embed": [1, 8, 8, 32], "model.image_newline": [64], "model.view_seperator": [64],
            "model.sam_model.neck.0.weight": [16, 32, 1, 1], "model.sam_model.neck.2.weight": [16, 16, 3, 3],
            "model.sam_model.net_2.weight": [32, 16, 3, 3], "model.sam_model.net_3.weight": [64, 32, 3, 3],
            "model.vision_model.embeddings.class_embedding": [64],
            "model.vision_model.embeddings.patch_embedding.weight": [64, 3, 14, 14],
            "model.vision_model.embeddings.position_embedding.weight": [257, 64],
            "model.projector.layers.weight": [64, 128], "model.projector.layers.bias": [64],
            **with_bias({
                "model.sam_model.patch_embed.proj": [32, 3, 16, 16], "model.sam_model.neck.1": [16],
                "model.sam_model.neck.3": [16], "model.vision_model.pre_layrnorm": [64],
            }),
            **layers(2, {
                "model.sam_model.blocks.{}.attn.rel_pos_h": [27, 16],
                "model.sam_model.blocks.{}.attn.rel_pos_w": [27, 16],
                **with_bias({
                    f"model.sam_model.blocks.{{}}.{name}": shape
                    for name, shape in {
                        "attn.qkv": [96, 32], "attn.proj": [32, 32], "norm1": [32], "norm2": [32],
                        "mlp.lin1": [128, 32], "mlp.lin2": [32, 128],
                    }.items()
                }),
            }),
            **layers(4, with_bias({
                f"model.vision_model.transformer.layers.{{}}.{name}": shape
                for name, shape in {
                    "self_attn.qkv_proj": [192, 64], "self_attn.out_proj": [64, 64], "layer_norm1": [64],
                    "layer_norm2": [64], "mlp.fc1": [256, 64], "mlp.fc2": [64, 256],
                }.items()
            })),
        },
    },
    "cogvlm": {
        "files": {
            "config.json": {
                "architectures": ["CogVLMForCausalLM"], **TEXT,
                "vision_config": {
                    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_heads": 2,
                    "image_size": 56, "patch_size": 14, "num_positions": 17, "layer_norm_eps": 1e-5,
                    "hidden_act": "gelu",
                },
            },
            "preprocessor_config.json": CLIP,
        },
        "tensors": {
            "model.vision.boi": [1, 1, 64], "model.vision.eoi": [1, 1, 64],
            "model.vision.patch_embedding.cls_embedding": [1, 64],
            "model.vision.patch_embedding.position_embedding.weight": [17, 64],
            "model.vision.linear_proj.linear_proj.weight": [64, 64],
            "model.vision.linear_proj.dense_h_to_4h.weight": [96, 64],
            "model.vision.linear_proj.gate_proj.weight": [96, 64],
            "model.vision.linear_proj.dense_4h_to_h.weight": [64, 96],
            **with_bias({
                "model.vision.patch_embedding.proj": [64, 3, 14, 14], "model.vision.linear_proj.norm1": [64],
            }),
            **layers(4, with_bias({
                f"model.vision.transformer.layers.{{}}.{name}": shape
                for name, shape in {
                    "attention.query_key_value": [192, 64], "attention.dense": [64, 64], "input_layernorm": [64],
                    "post_attention_layernorm": [64], "mlp.fc1": [96, 64], "mlp.fc2": [64, 96],
                }.items()
            })),
        },
    },
    "dots_ocr": {
        "files": {
            "config.json": {
                "architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr", **TEXT,
                "vision_config": {
                    "embed_dim": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
                    "num_attention_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "rms_norm_eps": 1e-5,
                },
            },
            "preprocessor_config.json": {**CLIP, "min_pixels": 3136, "max_pixels": 11289600},
        },
        "tensors": {
            "vision_tower.patch_embed.patchifier.proj.weight": [64, 3, 14, 14],
            "vision_tower.patch_embed.patchifier.proj.bias": [64],
            "vision_tower.patch_embed.patchifier.norm.weight": [64],
            "vision_tower.post_trunk_norm.weight": [64],
            **with_bias({
                "vision_tower.merger.ln_q": [64], "vision_tower.merger.mlp.0": [256, 256],
                "vision_tower.merger.mlp.2": [64, 256],
            }),
            **layers(4, {
                f"vision_tower.blocks.{{}}.{name}.weight": shape
                for name, shape in {
                    "attn.qkv": [192, 64], "attn.proj": [64, 64], "norm1": [64], "norm2": [64],
                    "mlp.fc1": [96, 64], "mlp.fc2": [64, 96], "mlp.fc3": [96, 64],
                }.items()
            }),
        },
    },
    "hunyuanvl": {
        "files": {
            "config.json": {
                "architectures": ["HunYuanVLForConditionalGeneration"], "model_type": "hunyuan_vl", **TEXT,
                "vision_config": {
                    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2,
                    "max_image_size": 64, "patch_size": 16, "spatial_merge_size": 2, "rms_norm_eps": 1e-5,
                },
            },
            "preprocessor_config.json": {**CLIP, "min_pixels": 262144, "max_pixels": 4194304},
        },
        "tensors": {
            "vit.embeddings.position_embedding.weight": [17, 64],
            **{f"vit.perceive.image_{name}": [64] for name in ("begin", "end", "sep")},
            "vit.perceive.image_newline": [256], "vit.perceive.before_rms.weight": [64],
            "vit.perceive.after_rms.weight": [64],
            **with_bias({
                "vit.embeddings.patch_embedding": [64, 3, 16, 16], "vit.perceive.proj.0": [128, 64, 2, 2],
                "vit.perceive.proj.2": [256, 128, 1, 1], "vit.perceive.mlp": [64, 256],
            }),
            **layers(4, with_bias({
                f"vit.layers.{{}}.{name}": shape
                for name, shape in {
                    "self_attn.q_proj": [64, 64], "self_attn.k_proj": [64, 64], "self_attn.v_proj": [64, 64],
                    "self_attn.o_proj": [64, 64], "input_layernorm": [64], "post_attention_layernorm": [64],
                    "mlp.dense_h_to_4h": [96, 64], "mlp.dense_4h_to_h": [64, 96],
                }.items()
            })),
        },
    },
    "paddleocr": {
        "files": {
            "config.json": {
                "architectures": ["PaddleOCRVLForConditionalGeneration"], "model_type": "paddleocr_vl", **TEXT,
                "vision_config": {**VISION, "architectures": ["PaddleOCRVisionModel"], "layer_norm_eps": 1e-6},
            },
            "preprocessor_config.json": {**CLIP, "min_pixels": 147384, "max_pixels": 2822400},
        },
        "tensors": {
            "visual.vision_model.embeddings.position_embedding.weight": [16, 64],
            "visual.vision_model.embeddings.packing_position_embedding.weight": [16, 64],
            "visual.vision_model.head.probe": [1, 1, 64],
            **with_bias({
                "visual.vision_model.embeddings.patch_embedding": [64, 3, 14, 14],
                "visual.vision_model.post_layernorm": [64], "mlp_AR.pre_norm": [64],
                "mlp_AR.linear_1": [256, 256], "mlp_AR.linear_2": [64, 256],
            }),
            **layers(4, with_bias({
                f"visual.vision_model.encoder.layers.{{}}.{name}": shape
                for name, shape in {
                    "self_attn.q_proj": [64, 64], "self_attn.k_proj": [64, 64], "self_attn.v_proj": [64, 64],
                    "self_attn.out_proj": [64, 64], "layer_norm1": [64], "layer_norm2": [64], "mlp.fc1": [96, 64],
                    "mlp.fc2": [64, 96],
                }.items()
            })),
        },
    },
}  # fmt: skip
OTHERS |= SOUNDS


def main() -> None:
    """Write the descriptions of all checkpoints, or of those named."""
    logging.disable()
    transformers.utils.logging.set_verbosity_error()
    found = dict(descriptions())
    for name in sys.argv[2:] or [*FAMILIES, *OTHERS]:
        description = OTHERS[name] if name in OTHERS else describe(*FAMILIES[name])
        found[name] = {**description, "expected": {kind: converted(name, description, kind) for kind in KINDS}}
        print(name, len(found[name]["expected"]["F32"]["tensors"]))
    recorded.write("projectors", dict(sorted(found.items())))


def describe(config_class: str, values: dict[str, Any], preprocessor: dict[str, Any]) -> dict[str, Any]:
    """Return the files and tensors of a checkpoint that transformers saves."""
    config = getattr(transformers, config_class)(**values)
    auto = transformers.AutoModelForImageTextToText
    model = next(each for each in (auto, transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForMultimodalLM)
                 if type(config) in each._model_mapping)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model.from_config(config).save_pretrained(folder)
        files = {"config.json": json.loads((Path(folder) / "config.json").read_text())}
        with safe_open(Path(folder) / "model.safetensors", "numpy") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    if preprocessor:
        files["preprocessor_config.json"] = preprocessor
    if "pixtral" in json.dumps(values):
        files |= {"tokenizer.json": BREAK, "tokenizer_config.json": {}}
    text = ("language_model.", "model.language_model.", "lm_head", "model.text_model")
    kept = {name: shape for name, shape in shapes.items() if not name.startswith(text) or "embed_tokens" in name}
    if config_class == "LightOnOcrConfig":
        files["config.json"]["architectures"] = ["LightOnOCRForConditionalGeneration"]
    if config_class in ("Gemma3Config", "Lfm2VlConfig"):
        kept = {re.sub(PLAIN_TOWER, "vision_tower.vision_model.", name): shape for name, shape in kept.items()}
    return {"files": files, "tensors": kept}


def converted(name: str, description: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the keys and the tensors of llama.cpp's conversion."""
    from conversion import get_model_class  # finds the `gguf` package of the sources
    from conversion.base import ModelBase, ModelType, get_model_architecture, gguf

    correct_names(gguf.TensorNameMap.block_mappings_cfg, gguf.MODEL_TENSOR)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, out = write_checkpoint(Path(folder) / "checkpoint", description), Path(folder) / "mmproj.gguf"
        hparams = ModelBase.load_hparams(checkpoint, False)
        model_class = get_model_class(get_model_architecture(hparams, ModelType.MMPROJ), mmproj=True)
        for key in ("hidden_size", "intermediate_size", "num_layers", "num_heads"):
            if hasattr(model_class, f"_vit_{key}"):  # of Nemotron, whose config.json lacks these
                setattr(model_class, f"_vit_{key}", VISION[NAMES.get(key, key)])
        file_type = {"F32": gguf.LlamaFileType.ALL_F32, "F16": gguf.LlamaFileType.MOSTLY_F16}[kind]
        model_class(checkpoint, file_type, out, hparams=hparams).write()
        file = gguf.GGUFReader(out)
        wanted = ("clip.", "general.type", "general.file_type", "general.architecture")
        tensors = {each.name: summary(each.shape[::-1], each.tensor_type.name, each.data) for each in file.tensors}
        tensors = comparable(name, tensors)
        keys = {key: plain(field.contents()) for key, field in file.fields.items() if key.startswith(wanted)}
        if "without" in description:
            keys = {key: value for key, value in keys.items() if not re.match(description["without"], key)}
        return {"keys": keys, "tensors": tensors} if kind == "F32" else {"tensors": digest_of_all(tensors)}


def correct_names(table: dict[Any, tuple[str, ...]], tensors: Any) -> None:
    """Move a name that some versions of the converter have in a wrong place: llama.cpp cannot load their files."""
    name, wrong, right = "encoder.layers.{bid}.conv.batch_norm", "A_ENC_CONV_NORM_VAR", "A_ENC_CONV_NORM"
    if name in table.get(getattr(tensors, wrong, None), ()):
        table[getattr(tensors, wrong)] = tuple(each for each in table[getattr(tensors, wrong)] if each != name)
        table[getattr(tensors, right)] += (name,)


def plain(value: Any) -> Any:
    """Return a value of a key as JSON has it."""
    return value.tolist() if hasattr(value, "tolist") else value


if __name__ == "__main__":
    main()
