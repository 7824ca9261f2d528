"""Muse Glimmer: text models of vision models, of which every fourth layer has full attention."""

from typing import Any

import transformers as T
from reference_spec import Spec, layer_types, rope, sizes

VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8,
    "pos_emb_height": 4, "pos_emb_width": 4,
}  # fmt: skip


def spec(text: dict[str, Any]) -> Spec:
    """Return a reference model with a text model of this configuration, whose keys the fixtures have but for one."""

    def written(values: dict[str, Any]) -> dict[str, Any]:
        factor = {"output_multiplier": text["output_multiplier"]}
        return values | {"text_config": values["text_config"] | factor}

    config = T.MuseGlimmerConfig(
        image_token_id=260, video_token_id=261, out_hidden_size=128, projector_hidden_size=64, text_config=text,
        vision_config=VISION, tie_word_embeddings=False,
    )  # fmt: skip
    model = T.MuseGlimmerForConditionalGeneration
    return Spec(architecture="muse-glimmer", model=model, norm=0.0, config=config, written=written)


MODELS = {
    "muse-glimmer": spec(
        sizes(3, 1, 4, head_dim=32) | layer_types(4, 4) | rope(theta=5e5) | {
            "qk_scale_factor": 2.5, "output_multiplier": 8.0, "final_logit_softcapping": 4.0,
        }
    ),
    "muse-glimmer-wide": spec(
        sizes(4, 2, 3, hidden_size=64, head_dim=32) | layer_types(3, 2) | rope() | {
            "qk_scale_factor": 1.25, "output_multiplier": 16.0, "final_logit_softcapping": 10.0, "rms_norm_eps": 1e-6,
            "layer_rope_theta": [10_000.0, 0, 10_000.0],
        }
    ),
}  # fmt: skip
