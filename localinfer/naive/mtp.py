"""The MTP head (multi-token prediction; Gloeckle et al., 2024; DeepSeek-V3, 2024) of the naive forward pass."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.builder import BlockFunction, Builder, MtpSpec
from localinfer.graph.mtp import join_inputs, merge_outputs
from localinfer.graph.properties.mtp import mtp_norm, read_mtp_block
from localinfer.naive.formulas import Floats
from localinfer.naive.weights import Model


def compute_mtp_states(
    g: Builder[Floats], model: Model, x: Floats, token_ids: NDArray[np.int64], apply_block: BlockFunction[Floats],
    spec: MtpSpec,
) -> Floats:  # fmt: skip
    """Return the states of the MTP head, if the file has one: row t depends on tokens 0 to t and on the hidden states
    before t. `x` is the residual stream."""
    if not model.has(f"blk.{g.block_count}.nextn.eh_proj.weight"):
        return np.zeros((0, 0))
    blk = read_mtp_block(g.properties, spec)
    own = f"{blk}nextn."
    states = g.norm(x, spec.norm) if spec.normed_states else x
    before = np.concatenate([np.zeros((1, x.shape[1]), x.dtype), states[:-1]])
    name = f"{own}embed_tokens" if model.has(f"{own}embed_tokens.weight") else "token_embd"
    y = join_inputs(g, model.rows(name, token_ids).astype(x.dtype), before, own, spec)
    apply_block(blk, y)
    return g.norm(merge_outputs(g, y, own, spec), mtp_norm(g.tensors, blk, spec))
