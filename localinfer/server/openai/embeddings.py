"""`/v1/embeddings`: texts in, vectors out, for models that make some."""

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from localinfer.server.desk import Desk
from localinfer.server.fields import Fields, get
from localinfer.server.problems import bad

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 2048  # texts in one request


async def embeddings(fields: Fields, desk: Desk) -> dict[str, Any]:
    """The whole answer."""
    spell = SPELLED.get(get(fields, "encoding_format", str, "float"))
    if spell is None:
        raise bad("encoding_format", f"must be {' or '.join(SPELLED)}")
    name, vectors, n_tokens = await embedded(fields, texts_of(fields, "input"), desk)
    data = [{"object": "embedding", "index": i, "embedding": spell(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


def texts_of(fields: Fields, name: str) -> list[Any]:
    """A text, or several, or their tokens."""
    given = fields.get(name)
    is_one = isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int))
    texts = [given] if is_one else given
    if not isinstance(texts, list) or not 0 < len(texts) <= MOST:
        raise bad(name, f"must be a text, or a list of up to {MOST}")
    return texts


async def embedded(fields: Fields, texts: list[Any], desk: Desk) -> "tuple[str, NDArray[np.float32], int]":
    """The model's name, a vector for each text, float32 (texts, n), and how many tokens were read."""
    async with desk.seat(get(fields, "model", str, "") or None) as seat:
        vectors = await seat.slot.call(lambda: seat.model.embed(texts))
        n_tokens = sum(len(seat.model.tokenize(text)) if isinstance(text, str) else len(text) for text in texts)
    return seat.name, vectors, n_tokens


def as_base64(vector: "NDArray[np.float32]") -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


SPELLED: "dict[str, Callable[[NDArray[np.float32]], object]]" = {"float": np.ndarray.tolist, "base64": as_base64}
