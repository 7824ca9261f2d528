"""StableLM (Stability AI, 2023): LayerNorms; the 12B model has parallel branches, and norms for each
head of its own."""

from localinfer.plan.decoder import INTO_BRANCHES, Sight, decoder
from localinfer.plan.recorder import Recorder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}


def record(r: Recorder) -> None:
    """Branches are parallel where the file has one norm for both; some values of a head do not turn."""
    parallel = r.keys.flag("use_parallel_residual", not r.has("blk.0.ffn_norm.weight"))
    decoder(
        r,
        Sight(r.rope("halves")),
        parallel=parallel,
        before=ONE_NORM if parallel else INTO_BRANCHES,
        head_norm="each" if r.has("blk.0.attn_q_norm.weight") else "no",
    )
