"""Granite 3 (IBM, 2024): as Llama, with multipliers for the embedding, the scores, the branches and the logits."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, Mixer, build_decoder
from localinfer.graph.experts import Router
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.recurrence import RECURRENT_KEYS


def build(g: GraphBuilder, router: Router | None = None, mixer: Mixer | None = None) -> None:
    """The logits are divided by `logit_scale`.

    The variants have experts or recurrent layers, and files have the keys for these even where there are none. The key
    `rope.scaling.finetuned` tells whether there is a rotary embedding at all; elsewhere it means something else.
    """
    hparams, rope = g.hparams, g.rope("interleaved")
    hparams.accept("expert_shared_feed_forward_length", *RECURRENT_KEYS)
    spec = DecoderSpec(
        attention=AttentionSpec(rope if hparams.flag("rope.scaling.finetuned", True) else None),
        embedding_scale=hparams.positive("embedding_scale", 1.0),
        residual_scale=hparams.positive("residual_scale", 1.0),
        scale=hparams.number("attention.scale", 0.0) or None,
        logit_scale=1 / hparams.positive("logit_scale"),
        router=router,
        mixer=mixer,
    )
    build_decoder(g, spec)
