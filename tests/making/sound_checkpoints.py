"""Checkpoints with encoders of sounds for make_projector_fixtures.py, by the names in published ones."""

import json
from typing import Any

from image_processors import CLIP_MEAN, CLIP_STD

TEXT = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 32, "head_dim": 32,
}  # fmt: skip
CLIP = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}
ROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [8, 4, 4]}}


def layers(n: int, shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the shapes of the tensors of n layers, whose names have "{}" for the number."""
    return {name.replace("{}", str(layer)): shape for name, shape in shapes.items() for layer in range(n)}


def with_bias(names: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return weights with their biases."""
    return {
        f"{name}.{kind}": shape if kind == "weight" else shape[:1]
        for name, shape in names.items()
        for kind in ("weight", "bias")
    }


SOUNDS: dict[str, dict[str, Any]] = {
    "lfm2audio": {
        "files": {
            "config.json": {
                "architectures": ["Lfm2AudioForConditionalGeneration"],
                "lfm": {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", **TEXT},
                "encoder": {"feat_in": 24, "n_layers": 7, "d_model": 32, "n_heads": 2, "ff_expansion_factor": 4},
            },
        },
        "tensors": {
            "lfm.embed_tokens.weight": [32, 64], "lfm.embedding_norm.weight": [64], "codebook_offsets": [8],
            "depthformer.layers.0.operator_norm.weight": [32], "audio_loss_weights": [8],
            "audio_embedding.embedding.weight": [16, 64], "audio_embedding.embedding_norm.weight": [64],
            "audio_embedding.to_logits.weight": [16, 64],
            **with_bias({
                "conformer.pre_encode.conv.0": [32, 1, 3, 3], "conformer.pre_encode.conv.2": [32, 1, 3, 3],
                "conformer.pre_encode.conv.3": [32, 32, 1, 1], "conformer.pre_encode.conv.5": [32, 1, 3, 3],
                "conformer.pre_encode.conv.6": [32, 32, 1, 1], "conformer.pre_encode.out": [32, 96],
                "audio_adapter.model.0": [32], "audio_adapter.model.1": [64, 32], "audio_adapter.model.3": [64, 64],
            }),
            **layers(7, {
                "conformer.layers.{}.self_attn.pos_bias_u": [2, 16],
                "conformer.layers.{}.self_attn.pos_bias_v": [2, 16],
                "conformer.layers.{}.self_attn.linear_pos.weight": [32, 32],
                "conformer.layers.{}.conv.batch_norm.running_mean": [32],
                "conformer.layers.{}.conv.batch_norm.running_var": [32],
                "conformer.layers.{}.conv.batch_norm.num_batches_tracked": [1],
                **with_bias({
                    f"conformer.layers.{{}}.{name}": shape
                    for name, shape in {
                        "norm_feed_forward1": [32], "feed_forward1.linear1": [48, 32], "norm_self_att": [32],
                        "feed_forward1.linear2": [32, 48], "self_attn.linear_q": [32, 32], "norm_conv": [32],
                        "self_attn.linear_k": [32, 32], "self_attn.linear_v": [32, 32], "conv.batch_norm": [32],
                        "self_attn.linear_out": [32, 32], "conv.pointwise_conv1": [64, 32, 1],
                        "conv.depthwise_conv": [32, 1, 9], "conv.pointwise_conv2": [32, 32, 1],
                        "norm_feed_forward2": [32], "feed_forward2.linear1": [48, 32],
                        "feed_forward2.linear2": [32, 48], "norm_out": [32],
                    }.items()
                }),
            }),
        },
    },
    "qwen2.5omni": {
        "files": {
            "config.json": {
                "architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni",
                "thinker_config": {
                    "model_type": "qwen2_5_omni_thinker", "text_config": {**TEXT, **ROPE},
                    "audio_config": {
                        "d_model": 32, "encoder_layers": 4, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
                        "num_mel_bins": 32, "num_hidden_layers": 4, "output_dim": 64,
                    },
                    "vision_config": {
                        "depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
                        "fullatt_block_indexes": [1], "patch_size": 14,
                    },
                },
            },
            "preprocessor_config.json": CLIP,
        },
        "tensors": {
            "thinker.model.embed_tokens.weight": [32, 64], "talker.model.norm.weight": [16],
            "thinker.audio_tower.audio_bos_eos_token.weight": [2, 64], "token2wav.code2wav.x.weight": [4, 4],
            "thinker.visual.patch_embed.proj.weight": [64, 3, 2, 14, 14], "thinker.visual.merger.ln_q.weight": [64],
            **with_bias({
                "thinker.visual.merger.mlp.0": [256, 256], "thinker.visual.merger.mlp.2": [64, 256],
                "thinker.audio_tower.conv1": [32, 32, 3], "thinker.audio_tower.conv2": [32, 32, 3],
                "thinker.audio_tower.ln_post": [32], "thinker.audio_tower.proj": [64, 32],
            }),
            **layers(2, {
                "thinker.visual.blocks.{}.norm1.weight": [64], "thinker.visual.blocks.{}.norm2.weight": [64],
                **with_bias({
                    f"thinker.visual.blocks.{{}}.{name}": shape
                    for name, shape in {
                        "attn.q": [64, 64], "attn.k": [64, 64], "attn.v": [64, 64], "attn.proj": [64, 64],
                        "mlp.gate_proj": [96, 64], "mlp.up_proj": [96, 64], "mlp.down_proj": [64, 96],
                    }.items()
                }),
            }),
            **layers(4, {
                "thinker.audio_tower.layers.{}.self_attn.k_proj.weight": [32, 32],
                **with_bias({
                    f"thinker.audio_tower.layers.{{}}.{name}": shape
                    for name, shape in {
                        "self_attn.q_proj": [32, 32], "self_attn.v_proj": [32, 32], "self_attn.out_proj": [32, 32],
                        "self_attn_layer_norm": [32], "fc1": [48, 32], "fc2": [32, 48], "final_layer_norm": [32],
                    }.items()
                }),
            }),
        },
    },
    "granite_speech": {
        "files": {
            "config.json": {
                "architectures": ["GraniteSpeechForConditionalGeneration"], "model_type": "granite_speech",
                "text_config": {**TEXT, "model_type": "granite"}, "window_size": 15, "downsample_rate": 5,
                "encoder_config": {
                    "input_dim": 32, "num_layers": 4, "hidden_dim": 32, "feedforward_mult": 2, "num_heads": 2,
                    "context_size": 10, "max_pos_emb": 12, "conv_kernel_size": 7,
                },
                "projector_config": {"num_attention_heads": 2},
            },
        },
        "tensors": {
            "language_model.model.embed_tokens.weight": [32, 64], "projector.query": [1, 3, 32],
            **with_bias({
                "encoder.input_linear": [32, 32], "encoder.out": [42, 32], "encoder.out_mid": [32, 42],
                "projector.qformer.layernorm": [32], "projector.linear": [64, 32],
            }),
            **layers(4, {
                "encoder.layers.{}.attn.to_q.weight": [32, 32], "encoder.layers.{}.attn.to_kv.weight": [64, 32],
                "encoder.layers.{}.attn.rel_pos_emb.weight": [25, 16],
                "encoder.layers.{}.conv.depth_conv.conv.weight": [64, 1, 7],
                "encoder.layers.{}.conv.batch_norm.running_mean": [64],
                "encoder.layers.{}.conv.batch_norm.running_var": [64],
                "encoder.layers.{}.conv.batch_norm.num_batches_tracked": [1],
                **with_bias({
                    f"encoder.layers.{{}}.{name}": shape
                    for name, shape in {
                        "ff1.pre_norm": [32], "ff1.up_proj": [64, 32], "ff1.down_proj": [32, 64], "post_norm": [32],
                        "ff2.pre_norm": [32], "ff2.up_proj": [64, 32], "ff2.down_proj": [32, 64], "conv.norm": [32],
                        "attn.pre_norm": [32], "attn.to_out": [32, 32], "conv.up_conv": [128, 32, 1],
                        "conv.batch_norm": [64], "conv.down_conv": [32, 64, 1],
                    }.items()
                }),
            }),
            **layers(2, with_bias({
                f"projector.qformer.encoder.layer.{{}}.{name}": shape
                for name, shape in {
                    **{
                        f"{kind}.{part}": [32] if part.endswith("Norm") else [32, 32]
                        for kind in ("attention", "crossattention")
                        for part in ("attention.query", "attention.key", "attention.value", "output.dense",
                                     "output.LayerNorm")
                    },
                    "intermediate_query.dense": [48, 32], "output_query.dense": [32, 48],
                    "output_query.LayerNorm": [32],
                }.items()
            })),
        },
    },
}  # fmt: skip
plus = json.loads(json.dumps(SOUNDS["granite_speech"]))
plus["files"]["config.json"]["architectures"] = ["GraniteSpeechPlusForConditionalGeneration"]
plus["files"]["config.json"]["encoder_config"]["cat_hidden_layers"] = [1, 3]
plus["files"]["config.json"]["projector_config"]["encoder_hidden_size"] = 96
for each in ("key", "value"):
    for layer in range(2):
        plus["tensors"][f"projector.qformer.encoder.layer.{layer}.crossattention.attention.{each}.weight"] = [32, 96]
SOUNDS["granite_speech_plus"] = plus
