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
    rotated values, which may be 0. The output of attn_v_b has `value_dim` values per head. `scale` multiplies the
    scores."""

    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    scale: float


def read_latent_shape(hparams: Hyperparameters, kind: str = "") -> LatentShape:
    """Return the shape from the metadata; with the `kind` "_swa", that of sliding-window layers.

    YaRN multiplies scores by the square of its amplitude; the file stores a tenth of the
    factor of the logarithm.
    Raises UnsupportedError for old files without split attn_kv_b, which would need expanded keys and values.
    """
    names = "kv_lora_rank", "key_length_mla", "value_length_mla"
    of_rank, of_key, of_value = (f"attention.{name}{kind}" for name in names)
    if not hparams.has(of_key):
        what = "is missing: the file was made before attn_kv_b was split; convert the model again"
        raise hparams.error(of_key, what, UnsupportedError)
    rank = hparams.count(of_rank, maximum=MAXIMA["attention.value_length"])
    key = hparams.count(of_key, maximum=MAXIMA["attention.key_length"])
    value = hparams.count(of_value, maximum=MAXIMA["attention.value_length"])
    rope_dim = hparams.count("rope.dimension_count", minimum=0, maximum=key - 1)
    for name, n in {of_rank: rank, of_key: key, of_value: value, "rope.dimension_count": rope_dim}.items():
        if n % VALUE_GROUP:
            raise hparams.unsupported(name, n)
    if (length := hparams.count(f"attention.key_length{kind}")) != rank + rope_dim:
        raise hparams.error(f"attention.key_length{kind}", f"is {length}, not {rank + rope_dim}")
    scaling_factor = hparams.positive("rope.scaling.factor", 1.0)
    amplitude = yarn_amplitude(scaling_factor, 10 * hparams.number("rope.scaling.yarn_log_multiplier", 0.0))
    return LatentShape(rank, rope_dim, key - rope_dim, value, key**-0.5 * amplitude**2)
