"""Texts as vectors, under OpenAI's address and Ollama's two, for models that make some."""

import base64
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from localinfer.server.desk import Desk
from localinfer.server.fields import Fields, body_of, get
from localinfer.server.problems import Problem, bad
from localinfer.server.streams import Json

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 2048  # texts in one request


async def openai(request: Request) -> Response:
    fields = await body_of(request)
    spell = SPELLED.get(get(fields, "encoding_format", str, "float"))
    if spell is None:
        raise bad("encoding_format", f"must be {' or '.join(SPELLED)}")
    name, vectors, n_tokens = await embedded(request, fields, texts_of(fields, "input"))
    data = [{"object": "embedding", "index": i, "embedding": spell(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Json({"object": "list", "data": data, "model": name, "usage": usage})


async def ollama(request: Request) -> Response:
    began, fields = perf_counter_ns(), await body_of(request)
    name, vectors, n_tokens = await embedded(request, fields, texts_of(fields, "input"))
    counts = {"total_duration": perf_counter_ns() - began, "load_duration": 0, "prompt_eval_count": n_tokens}
    return Json({"model": name, "embeddings": [vector.tolist() for vector in vectors]} | counts)


async def ollama_older(request: Request) -> Response:
    fields = await body_of(request)
    _, [vector], _ = await embedded(request, fields, [get(fields, "prompt", str, "")])
    return Json({"embedding": vector.tolist()})


def texts_of(fields: Fields, name: str) -> list[Any]:
    """A text, or several, or their tokens."""
    given = fields.get(name)
    is_one = isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int))
    texts = [given] if is_one else given
    if not isinstance(texts, list) or not 0 < len(texts) <= MOST:
        raise bad(name, f"must be a text, or a list of up to {MOST}")
    return texts


async def embedded(request: Request, fields: Fields, texts: list[Any]) -> "tuple[str, NDArray[np.float32], int]":
    """The model's name, a vector for each text, float32 (texts, n), and how many tokens were read."""
    desk: Desk = request.app.state.desk
    async with desk.seat(get(fields, "model", str, "") or None) as seat:
        embed: Callable[[list[Any]], Any] | None = getattr(seat.model, "embed", None)
        if embed is None:
            raise Problem(501, "embeddings are not supported by this version", code="not_supported")
        vectors = np.asarray(await seat.slot.call(lambda: embed(texts)), np.float32)
        n_tokens = sum(len(seat.model.tokenize(text)) if isinstance(text, str) else len(text) for text in texts)
    return seat.name, vectors, n_tokens


def as_base64(vector: "NDArray[np.float32]") -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


SPELLED: "dict[str, Callable[[NDArray[np.float32]], object]]" = {"float": np.ndarray.tolist, "base64": as_base64}
