"""`/embedding` and `/embeddings`: embeddings in llama.cpp's own format, a list with the vectors of each text.

With `--pooling none`, a text has a vector for each of its tokens, which is not normalized.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import field_error
from localinfer.server.http.json_output import dump_list
from localinfer.server.http.streaming import JSONResponse
from localinfer.server.openai.embeddings import embed_inputs, prompt_ids
from localinfer.server.requests.mixed_prompts import MixedPrompt, parse_prompts
from localinfer.server.requests.request_fields import Fields, get, read_json_object

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from localinfer.model import Model

    Vectors = NDArray[np.float32]  # (n, length of an embedding)

EUCLIDEAN = 2


async def embeddings(request: Request) -> Response:
    """`/embedding` and `/embeddings`"""
    fields, dispatcher = await read_json_object(request), request.app.state.dispatcher
    name = "input" if fields.get("input") is not None else "content"
    prompts = await asyncio.to_thread(parse_prompts, fields.get(name), name)
    normalize = get(fields, "embd_normalize", int, EUCLIDEAN)
    if not -1 <= normalize <= 1000:
        raise field_error("embd_normalize", "must be an integer from -1 to 1000")
    if dispatcher.settings.pooling == "none":
        vectors = await embed_tokens(fields, prompts, dispatcher)
    else:
        _, pooled, _ = await embed_inputs(fields, prompts, dispatcher, normalize)
        vectors = [vector[None] for vector in pooled]
    return JSONResponse(await asyncio.to_thread(dump_vectors, vectors))


def dump_vectors(vectors: "Sequence[Vectors]") -> bytes:
    """Return the response with the vectors of each text, encoded as JSON."""
    texts = (dump_list(row.tolist() for row in rows) for rows in vectors)
    return b"[%b]" % b",".join(b'{"index":%d,"embedding":%b}' % item for item in enumerate(texts))


async def embed_tokens(fields: Fields, prompts: list[MixedPrompt], dispatcher: Dispatcher) -> "Sequence[Vectors]":
    """Return the vectors of the tokens of each text."""

    def embed(model: "Model") -> "Sequence[Vectors]":
        return list(model.embed_tokens(prompt_ids(fields, prompts, model), prompt=""))

    async with dispatcher.lease(get(fields, "model", str, "") or None) as lease:
        return await lease.slot.call(lambda: embed(lease.model))
