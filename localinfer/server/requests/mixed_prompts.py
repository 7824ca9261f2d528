"""Prompts in every form that llama.cpp's server accepts: texts, token ids, both mixed, and objects with a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from localinfer.errors import UsageError
from localinfer.multimodal.access import decode_base64
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.requests.prompts import MAX_PROMPT_CHARS
from localinfer.server.slots import stop_prompt_if_cancelled

if TYPE_CHECKING:
    from localinfer.model import Model

MAX_PROMPTS = 2048  # per request
MAX_DIGITS = 20  # of a token id in an error


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """A prompt made of texts and token ids, or of a text with images and sounds, which are base64, at its markers."""

    parts: tuple[str | int, ...]
    media: tuple[str, ...] = ()
    field: str = "prompt"  # which errors of the media name

    def with_prefix(self, prefix: str) -> "MixedPrompt":
        """Return the prompt with a text before its own; token ids at its beginning stay the first."""
        first, *rest = self.parts
        return replace(self, parts=(prefix + first, *rest)) if isinstance(first, str) else self

    def ids(self, model: "Model", *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the token ids. With `add_special`, they begin with BOS if the model expects it and the prompt begins
        with a text.

        Raises UsageError for too much text, or a token id that does not exist.
        """
        n_chars = sum(len(part) for part in self.parts if isinstance(part, str))
        if n_chars > MAX_PROMPT_CHARS:
            raise UsageError(f"prompt: {n_chars} characters (limit {MAX_PROMPT_CHARS})")
        if self.media:
            return self._ids_with_media(model, add_special=add_special, parse_special=parse_special)
        ids: list[int] = []
        for index, part in enumerate(self.parts):
            if isinstance(part, str):
                is_start = add_special and index == 0
                ids += model.tokenize(
                    part, add_special=is_start, parse_special=parse_special, on_wait=stop_prompt_if_cancelled
                )
            elif 0 <= part < model.n_vocab:
                ids.append(part)
            else:
                raise UsageError(f"prompt: there is no token {part}, the vocabulary has {model.n_vocab}")
        return ids

    def _ids_with_media(self, model: "Model", *, add_special: bool, parse_special: bool) -> list[int]:
        fields = [f"{self.field}.multimodal_data[{index}]" for index in range(len(self.media))]
        media = [decode_base64(each, field) for each, field in zip(self.media, fields, strict=True)]
        return model.tokenize(
            str(self.parts[0]), add_special=add_special, parse_special=parse_special, media=media,
            on_wait=stop_prompt_if_cancelled)  # fmt: skip


def parse_prompts(value: object, field: str, *, allows_media: bool = False) -> list[MixedPrompt]:
    """Return the prompts of a field, which may be a single one: see `is_single`. Raises APIError (400)."""
    if is_single(value):
        return [parse_prompt(value, field, allows_media=allows_media)]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PROMPTS:
        raise field_error(field, f"must be a text, a list of token ids, or a list of up to {MAX_PROMPTS} of these")
    return [parse_prompt(each, f"{field}[{index}]", allows_media=allows_media) for index, each in enumerate(value)]


def is_single(value: object) -> bool:
    """Return whether this is one prompt: a text, an object, or a list with a token id. A list of texts is several."""
    return isinstance(value, str | Mapping) or (isinstance(value, list) and any(map(is_token_id, value)))


def is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def require_vocabulary_ids(value: Sequence[object], field: str) -> None:
    """Raise APIError (400) for a negative token id: those stand for images and sounds, perhaps of somebody else."""
    negative = next((each for each in value if isinstance(each, int) and each < 0), None)
    if negative is not None:
        raise field_error(field, f"must have token ids of 0 or more, not {str(negative)[:MAX_DIGITS]}")


def parse_prompt(value: object, field: str, *, allows_media: bool = False) -> MixedPrompt:
    """Parse one prompt. Raises APIError (400) for another type, and (501) for images and sounds that are not allowed.
    """
    if isinstance(value, str):
        return MixedPrompt((value,))
    if isinstance(value, Mapping):
        return MixedPrompt((object_text(value, field),), media_of(value, field, allows_media=allows_media), field)
    if isinstance(value, list) and value and all(isinstance(part, str) or is_token_id(part) for part in value):
        require_vocabulary_ids(value, field)
        return MixedPrompt(tuple(value))
    raise field_error(field, "must be a text, or a list of token ids and texts")


def media_of(value: Mapping[str, Any], field: str, *, allows_media: bool) -> tuple[str, ...]:
    """Return the images and sounds of a prompt, which are base64."""
    media = value.get("multimodal_data") or []
    if not isinstance(media, list) or not all(isinstance(each, str) for each in media):
        raise field_error(f"{field}.multimodal_data", "must be a list of images and sounds in base64")
    if media and not allows_media:
        raise APIError(501, f"{field}.multimodal_data: images and sounds are not supported here", param=field)
    return tuple(media)


def object_text(value: Mapping[str, Any], field: str) -> str:
    """Return the text of `{"prompt_string": ...}` or of `{"content": [{"type": "text", "text": ...}]}`."""
    if isinstance(text := value.get("prompt_string"), str):
        return text
    content = value.get("content")
    if not isinstance(content, list) or not content:
        raise field_error(field, "must have a prompt_string, or a content with a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise field_error(f"{field}.content", "must have parts of type text only")
        texts.append(part["text"])
    return "".join(texts)
