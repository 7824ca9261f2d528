"""What comes before and after the layer of an MTP head, composed of a builder's operations: its input, and the sum of
its residual streams. See `localinfer.graph.recording.operations.mtp`."""

from localinfer.graph.builder import Builder, MtpSpec, X
from localinfer.graph.hyper_connections import merge_streams


def join_inputs(g: Builder[X], embedded: X, previous: X, prefix: str, spec: MtpSpec) -> X:
    """Return the input of the layer, as many residual streams as the hidden states `previous` have. `embedded` is the
    embedding of the token, and `prefix` that of the names of the head's tensors."""
    n, count = g.embedding_length, spec.streams.count if spec.streams else 1
    states = g.per_head.split(previous, 1, *[n] * count) if count > 1 else [previous]
    token = g.norm(embedded, f"{prefix}enorm")
    both = (g.per_head.join(1, token, g.norm(state, f"{prefix}hnorm")) for state in states)
    inputs = [g.matmul(each, f"{prefix}eh_proj", n) for each in both]
    return g.per_head.join(1, *inputs) if count > 1 else inputs[0]


def merge_outputs(g: Builder[X], y: X, prefix: str, spec: MtpSpec) -> X:
    """Return the sum of the layer's residual streams, whose weights the head's own tensors give, or the model's if it
    has none; y itself if it is one stream."""
    if not spec.streams:
        return y
    own = f"{prefix}output_hc"
    return merge_streams(g, y, own if g.tensors.has(f"{own}_fn.weight") else "output_hc", spec.streams)
