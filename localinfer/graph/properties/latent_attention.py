"""Multi-head latent attention (DeepSeek-V2, 2024): the cache holds a low-rank latent vector and a rotated slice per
token.

All heads share one key, [rope, latent], and the latent is also the value. A matrix per head, attn_k_b, maps queries to
the latent space; another one, attn_v_b, maps the attention output to the head's values. Keys and values are never
expanded.
"""

from dataclasses import dataclass

from localinfer.errors import UnsupportedError
from localinfer.graph.properties.attention import VALUE_GROUP
from localinfer.graph.properties.hyperparameters import MAXIMA, Hyperparameters
from localinfer.graph.properties.rope import yarn_amplitude


@dataclass(frozen=True)
class LatentShape:
    """Each query head has `nope_dim` values that are mapped to the latent space of size `rank`, followed by `rope_dim`
    rotated values. The output of attn_v_b has `value_dim` values per head. `scale` multiplies the scores."""

    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    scale: float


def read_latent_shape(hparams: Hyperparameters) -> LatentShape:
    """Return the shape from the metadata.

    YaRN multiplies scores by the square of its amplitude; the file stores a tenth of the
    factor of the logarithm.
    Raises UnsupportedError for old files without split attn_kv_b, which would need expanded keys and values.
    """
    if not hparams.has("attention.key_length_mla"):
        what = "is missing: the file was made before attn_kv_b was split; convert the model again"
        raise hparams.error("attention.key_length_mla", what, UnsupportedError)
    rank = hparams.count("attention.kv_lora_rank", maximum=MAXIMA["attention.value_length"])
    key = hparams.count("attention.key_length_mla", maximum=MAXIMA["attention.key_length"])
    value = hparams.count("attention.value_length_mla", maximum=MAXIMA["attention.value_length"])
    rope_dim = hparams.count("rope.dimension_count", maximum=key - 1)
    lengths = {"attention.kv_lora_rank": rank, "attention.key_length_mla": key, "attention.value_length_mla": value}
    for name, n in {**lengths, "rope.dimension_count": rope_dim}.items():
        if n % VALUE_GROUP:
            raise hparams.unsupported(name, n)
    if (length := hparams.count("attention.key_length")) != rank + rope_dim:
        raise hparams.error("attention.key_length", f"is {length}, not {rank + rope_dim}")
    scaling_factor = hparams.positive("rope.scaling.factor", 1.0)
    amplitude = yarn_amplitude(scaling_factor, 10 * hparams.number("rope.scaling.yarn_log_multiplier", 0.0))
    return LatentShape(rank, rope_dim, key - rope_dim, value, key**-0.5 * amplitude**2)
