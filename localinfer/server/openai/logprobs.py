"""Log-probabilities of tokens, in the formats of OpenAI's chat and completions APIs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece
    from localinfer.model import Model

MIN_LOGPROB = -9999.0  # OpenAI's value for tokens with probability 0


def chat_logprob(piece: "Piece", n_top: int, model: "Model") -> dict[str, Any]:
    """Return a token's logprob and those of the `n_top` most probable tokens at its position."""
    top = [{**describe_token(each.id, model), "logprob": clamp_logprob(each.logprob)} for each in piece.top[:n_top]]
    return {**describe_token(piece.id, model), "logprob": clamp_logprob(piece.logprob), "top_logprobs": top}


def clamp_logprob(logprob: float | None) -> float | None:
    """Replace -inf, which JSON cannot represent."""
    return None if logprob is None else max(logprob, MIN_LOGPROB)


def describe_token(id: int, model: "Model") -> dict[str, Any]:
    token_bytes = model.tokenizer.token_bytes(id, special=True)
    return {"id": id, "token": token_bytes.decode("utf-8", "replace"), "bytes": list(token_bytes)}


def completion_logprobs(pieces: "list[Piece]", n_top: int, model: "Model", offset: int) -> dict[str, Any]:
    """Return the logprobs of pieces as parallel lists. The first piece starts at character `offset` of the text."""
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece.text)
    return {
        "tokens": [describe_token(piece.id, model)["token"] for piece in pieces],
        "token_logprobs": [clamp_logprob(piece.logprob) for piece in pieces],
        "top_logprobs": [{each.text: clamp_logprob(each.logprob) for each in piece.top[:n_top]} for piece in pieces],
        "text_offset": offsets,
    }
