"""How probable tokens were, in the two forms that OpenAI has for it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece
    from localinfer.model import Model

IMPOSSIBLE = -9999.0  # OpenAI's


def of_chat(piece: "Piece", most: int, model: "Model") -> dict[str, Any]:
    """A token with the `most` probable ones in its place. Bytes tell what texts cannot: parts of characters."""
    top = [{**token(each.id, model), "logprob": finite(each.logprob)} for each in piece.top[:most]]
    return {**token(piece.id, model), "logprob": finite(piece.logprob), "top_logprobs": top}


def finite(logprob: float | None) -> float | None:
    """JSON has no infinity."""
    return None if logprob is None else max(logprob, IMPOSSIBLE)


def token(id: int, model: "Model") -> dict[str, Any]:
    spelled = model.tokenizer.token_bytes(id, special=True)
    return {"id": id, "token": spelled.decode("utf-8", "replace"), "bytes": list(spelled)}


def of_text(pieces: "list[Piece]", most: int, model: "Model", offset: int) -> dict[str, Any]:
    """Of the older form: lists side by side. The first text begins `offset` characters into the answer."""
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece.text)
    return {
        "tokens": [token(piece.id, model)["token"] for piece in pieces],
        "token_logprobs": [finite(piece.logprob) for piece in pieces],
        "top_logprobs": [{each.text: finite(each.logprob) for each in piece.top[:most]} for piece in pieces],
        "text_offset": offsets,
    }
