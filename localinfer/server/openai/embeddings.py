"""`/v1/embeddings`: compute the embeddings of texts."""

import asyncio
import base64
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.http.json_output import dump_json, dump_list
from localinfer.server.requests.mixed_prompts import MixedPrompt, parse_prompts
from localinfer.server.requests.request_fields import Fields, get, get_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from localinfer.model import Model

MAX_DIMENSIONS = 1 << 20


async def embeddings(fields: Fields, dispatcher: Dispatcher) -> dict[str, Any]:
    """Return the response."""
    items, rest = await compute(fields, dispatcher)
    return {"object": "list", "data": list(items)} | rest


async def encoded_embeddings(fields: Fields, dispatcher: Dispatcher) -> bytes:
    """Return the response, encoded as JSON in another thread."""
    items, rest = await compute(fields, dispatcher)
    data = await asyncio.to_thread(dump_list, items)
    return b'{"object":"list","data":%b,%b' % (data, dump_json(rest)[1:])


async def compute(fields: Fields, dispatcher: Dispatcher) -> tuple[Iterator[dict[str, Any]], dict[str, Any]]:
    """Return the elements of the response's `data`, and its other fields."""
    encode = ENCODERS.get(get(fields, "encoding_format", str, "float"))
    if encode is None:
        raise field_error("encoding_format", f"must be {' or '.join(ENCODERS)}")
    prompts = await asyncio.to_thread(parse_prompts, fields.get("input"), "input")
    name, vectors, n_tokens = await embed_inputs(fields, prompts, dispatcher)
    items = ({"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(vectors))
    return items, {"model": name, "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens}}


async def embed_inputs(
    fields: Fields, prompts: "Sequence[MixedPrompt]", dispatcher: Dispatcher, normalize: float = 2.0, *,
    truncate: bool = False,
) -> "tuple[str, NDArray[np.float32], int]":  # fmt: skip
    """Return the model's name, the embeddings, float32 (len(prompts), n), and the number of tokens.

    With `dimensions`, each embedding is cut to so many values before it is normalized, which models that were trained
    for it allow. `prompt_name` names a prompt of the model, which is put before each text; `truncate` cuts texts to
    the context, by default as the argument says.
    """
    dimensions = get_int(fields, "dimensions", 0, 0, MAX_DIMENSIONS)
    truncates = get(fields, "truncate", bool, truncate)
    pooling = dispatcher.settings.pooling
    if pooling == "none":
        raise APIError(400, "pooling none: has no embedding of a whole text; use /embeddings", code="pooling")

    def embed(model: "Model") -> "tuple[NDArray[np.float32], int]":
        ids = prompt_ids(fields, prompts, model)
        vectors = model.embed(
            ids, pooling=pooling, normalize=normalize, dimensions=dimensions, prompt="", truncate=truncates
        )
        return vectors, sum(min(len(each), model.n_ctx) for each in ids)

    async with dispatcher.lease(get(fields, "model", str, "") or None) as lease:
        start = perf_counter()
        vectors, n_tokens = await lease.slot.call(lambda: embed(lease.model))
        if dispatcher.observer:
            dispatcher.observer.on_prompts_embedded(n_tokens, perf_counter() - start)
    return lease.name, vectors, n_tokens


def prompt_ids(fields: Fields, prompts: "Sequence[MixedPrompt]", model: "Model") -> list[list[int]]:
    """Return the token ids of texts, each with the model's prompt before it that `prompt_name` names, or the default.

    Raises UsageError for a name that the model does not have.
    """
    prefix = model.prompts.select(get(fields, "prompt_name", str, "") or None)
    return [prompt.with_prefix(prefix).ids(model, parse_special=False) for prompt in prompts]


def encode_base64(vector: "NDArray[np.float32]") -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


ENCODERS: "dict[str, Callable[[NDArray[np.float32]], object]]" = {"float": np.ndarray.tolist, "base64": encode_base64}
