"""Multi-head latent attention (DeepSeek-V2, 2024): of a token only a latent vector is kept, and a part that turns.

Both are one key that all heads share, [turning, latent], and the latent is its value. A matrix for each head, attn_k_b,
takes the queries there; another one, attn_v_b, makes the head's value of what was found. So nothing is ever expanded.
"""

from dataclasses import dataclass

from localinfer.errors import Unsupported
from localinfer.plan.heads import CELL
from localinfer.plan.keys import LARGEST, Keys
from localinfer.plan.rope import yarn_amplitude


@dataclass(frozen=True)
class Latent:
    """Of each head's queries, `plain` values meet the latent, which has `rank`, and behind them `turning` values those
    that turn; behind attn_v_b a head has `value`. Scores are multiplied by `scale`."""

    rank: int
    turning: int
    plain: int
    value: int
    scale: float


def read_latent(keys: Keys) -> Latent:
    """As the file says. YaRN makes all of a score larger, by the square of its amplitude: the file has a tenth of the
    factor of the logarithm in that.

    Raises Unsupported for the first files of this kind, in which keys and values of all heads are to be kept.
    """
    if not keys.has("attention.key_length_mla"):
        what = "is missing: the file was made before attn_kv_b was split, and has to be converted anew"
        raise keys.error("attention.key_length_mla", what, Unsupported)
    rank = keys.count("attention.kv_lora_rank", most=LARGEST["attention.value_length"])
    key = keys.count("attention.key_length_mla", most=LARGEST["attention.key_length"])
    value = keys.count("attention.value_length_mla", most=LARGEST["attention.value_length"])
    turning = keys.count("rope.dimension_count", most=key - 1)
    lengths = {"attention.kv_lora_rank": rank, "attention.key_length_mla": key, "attention.value_length_mla": value}
    for name, n in {**lengths, "rope.dimension_count": turning}.items():
        if n % CELL:
            raise keys.refuse(name, n)
    for name, n in (("attention.key_length", rank + turning), ("attention.value_length", rank)):
        if keys.count(name) != n:
            raise keys.error(name, f"is {keys.count(name)}, not {n}")
    stretch = keys.positive("rope.scaling.factor", 1.0)
    grows = yarn_amplitude(stretch, 10 * keys.number("rope.scaling.yarn_log_multiplier", 0.0))
    return Latent(rank, turning, key - turning, value, key**-0.5 * grows**2)
