"""Granite 3 (IBM, 2024): as Llama, with multipliers for the embedding, the scores, the branches and the logits."""

from localinfer.graph.builder import AttentionSpec, Builder, PerLayer, Router, X
from localinfer.graph.decoder import DecoderSpec, Mixer, build_decoder
from localinfer.graph.properties.recurrence import RECURRENT_KEYS


def build(
    g: Builder[X], router: Router | None = None, mixer: Mixer[X] | None = None,
    attention: PerLayer[AttentionSpec] | None = None,
) -> None:  # fmt: skip
    """The logits are divided by `logit_scale`.

    The variants have experts, recurrent layers or other attention in each layer, and files have the keys for the first
    two even where there are none.
    """
    hparams = g.hparams
    hparams.accept("expert_shared_feed_forward_length", *RECURRENT_KEYS)
    spec = DecoderSpec(
        attention=attention or granite_attention(g),
        embedding_scale=hparams.positive("embedding_scale", 1.0),
        residual_scale=hparams.positive("residual_scale", 1.0),
        logit_scale=1 / hparams.positive("logit_scale"),
        router=router,
    )
    build_decoder(g, spec, mixer)


def granite_attention(g: Builder[X]) -> AttentionSpec:
    """Return the attention of all layers. The key `rope.scaling.finetuned` specifies whether there is a rotary
    embedding at all; elsewhere it means something else."""
    rope = g.rope("interleaved")
    return AttentionSpec(
        rope if g.hparams.flag("rope.scaling.finetuned", True) else None,
        scale=g.hparams.number("attention.scale", 0.0) or None,
    )
