"""Granite 3 (IBM, 2024): as Llama, with multipliers for the embedding, the scores, the branches and the logits."""

from localinfer.graph.builder import AttentionSpec, Builder, Router, X
from localinfer.graph.decoder import DecoderSpec, Mixer, build_decoder
from localinfer.graph.properties.recurrence import RECURRENT_KEYS


def build(g: Builder[X], router: Router | None = None, mixer: Mixer[X] | None = None) -> None:
    """The logits are divided by `logit_scale`.

    The variants have experts or recurrent layers, and files have the keys for these even where there are none. The key
    `rope.scaling.finetuned` specifies whether there is a rotary embedding at all; elsewhere it means something else.
    """
    hparams, rope = g.hparams, g.rope("interleaved")
    hparams.accept("expert_shared_feed_forward_length", *RECURRENT_KEYS)
    attention = AttentionSpec(
        rope if hparams.flag("rope.scaling.finetuned", True) else None,
        scale=hparams.number("attention.scale", 0.0) or None,
    )
    spec = DecoderSpec(
        attention=attention,
        embedding_scale=hparams.positive("embedding_scale", 1.0),
        residual_scale=hparams.positive("residual_scale", 1.0),
        logit_scale=1 / hparams.positive("logit_scale"),
        router=router,
    )
    build_decoder(g, spec, mixer)
