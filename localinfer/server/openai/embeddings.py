"""`/v1/embeddings`: compute the embeddings of texts."""

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from localinfer.server.api_errors import field_error
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.request_fields import Fields, get

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_INPUTS = 2048  # per request


async def embeddings(fields: Fields, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the response."""
    encode = ENCODERS.get(get(fields, "encoding_format", str, "float"))
    if encode is None:
        raise field_error("encoding_format", f"must be {' or '.join(ENCODERS)}")
    name, vectors, n_tokens = await embed_inputs(fields, parse_inputs(fields, "input"), dispatcher)
    data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


def parse_inputs(fields: Fields, name: str) -> list[Any]:
    """Return the inputs of a request, each a string or a list of token ids. Raises APIError (400) for anything else."""
    value = fields.get(name)
    is_single = isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int))
    texts = [value] if is_single else value
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_INPUTS:
        raise field_error(name, f"must be a string, or a list of up to {MAX_INPUTS} strings")
    return texts


async def embed_inputs(
    fields: Fields, texts: list[Any], dispatcher: Dispatcher
) -> "tuple[str, NDArray[np.float32], int]":
    """Return the model's name, the embeddings, float32 (len(texts), embedding_length), and the number of tokens."""
    async with dispatcher.lease(get(fields, "model", str, "") or None) as lease:
        vectors = await lease.slot.call(lambda: lease.model.embed(texts, pooling=dispatcher.settings.pooling))
        n_tokens = sum(len(lease.model.tokenize(text)) if isinstance(text, str) else len(text) for text in texts)
    return lease.name, vectors, n_tokens


def encode_base64(vector: "NDArray[np.float32]") -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


ENCODERS: "dict[str, Callable[[NDArray[np.float32]], object]]" = {"float": np.ndarray.tolist, "base64": encode_base64}
