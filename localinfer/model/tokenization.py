"""Texts to token ids and back, with the ids of images and sounds between them."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import index
from typing import TYPE_CHECKING

from localinfer.errors import UsageError
from localinfer.model.base import ModelBase

if TYPE_CHECKING:  # most prompts are text only
    from localinfer.multimodal.access import MediaAccess


class Tokenization(ModelBase):
    """Convert texts to token ids and back."""

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, media: Sequence[object] = (),
        media_access: "MediaAccess | None" = None, on_wait: Callable[[], None] | None = None,
    ) -> list[int]:  # fmt: skip
        """Return the token ids of a text.

        `media` are images, sounds and videos, in the order of the markers <__media__> in the text; without markers,
        they come before it. Their token ids are negative.

        With `add_special`, the ids begin with BOS if the model expects it, but never with two. With `parse_special`,
        the texts of control tokens become control tokens.

        With `on_wait`, a child process tokenizes a long text. Meanwhile `on_wait` is called several times a second; it
        may raise, which ends the process.
        """
        if media:
            return self._tokenize_with_media(
                text, media, media_access, on_wait, add_special=add_special, parse_special=parse_special
            )
        ids = self._encode(text, on_wait, add_special=add_special, parse_special=parse_special)
        return ids[1:] if ids[:2] == [self.tokenizer.bos] * 2 else ids

    def detokenize(
        self, ids: Sequence[int], *, special: bool = False, on_wait: Callable[[], None] = lambda: None
    ) -> str:
        """Return the text of token ids; with `special`, it includes the texts of control tokens, and the marker
        <__media__> for each image and sound.

        `on_wait` is called after every few thousand tokens; it may raise.
        """
        checked = self._check_ids(ids, media=True)
        if min(checked, default=0) >= 0:
            return self.tokenizer.decode(checked, special=special, on_wait=on_wait)
        from localinfer.chat_template.placeholders import MEDIA_MARKER

        runs = ((is_media, list(run)) for is_media, run in groupby(checked, lambda id: id < 0))
        texts = (
            MEDIA_MARKER * special if is_media else self.tokenizer.decode(run, special=special, on_wait=on_wait)
            for is_media, run in runs
        )
        return "".join(texts)

    def _tokenize_with_media(
        self, text: str, media: Sequence[object], access: "MediaAccess | None", on_wait: Callable[[], None] | None, *,
        add_special: bool, parse_special: bool,
    ) -> list[int]:  # fmt: skip
        from localinfer.chat_template.placeholders import MEDIA_MARKER
        from localinfer.multimodal.access import ANY_FILE

        pieces = text.split(MEDIA_MARKER) if MEDIA_MARKER in text else ["" for _ in media] + [text]
        if len(pieces) != len(media) + 1:
            raise UsageError(f"media: {len(media)} for {len(pieces) - 1} markers {MEDIA_MARKER} in the prompt")
        encoder = self._resources.media_encoder()
        hold, hooks = self.engine.prompt_media.begin(), self.engine.sequence.modifiers.hooks
        ids_of_media = encoder.encode_sources(media, access or ANY_FILE, hold, self.n_ctx, hooks)
        ids = self.tokenize(pieces[0], add_special=add_special, parse_special=parse_special, on_wait=on_wait)
        for media_ids, piece in zip(ids_of_media, pieces[1:], strict=True):
            ids += media_ids
            if piece:
                keywords = {"add_special": False, "parse_special": parse_special, "continues_text": True}
                ids += self._encode(piece, on_wait, **keywords)
        return ids

    def _encode(self, text: str, on_wait: Callable[[], None] | None, **keywords: bool) -> list[int]:
        if on_wait is not None:
            from localinfer.chat_template.long_prompts import can_run_in_child, encode_in_child, is_long

            if is_long(text) and can_run_in_child(self.file):
                return encode_in_child(self.file, text, on_wait, **keywords)
        return self.tokenizer.encode(text, **keywords)

    def _check_ids(self, ids: Sequence[int], *, media: bool = False) -> list[int]:
        """Return token ids as a list of int. Raises UsageError if one is not in the vocabulary, nor, with `media`, the
        id of a row that the engine was given, or of a token of an encoder."""
        try:
            tokens = [index(id) for id in ids]
        except TypeError:
            raise UsageError("tokens: must be a flat list of integers") from None
        lowest = -self.n_vocab if media and self.engine.context.encoder_decoder else 0
        wrong = next((id for id in tokens if not lowest <= id < self.n_vocab), None)
        if media and wrong is not None and (table := self.engine.runner.media_table):
            outside = (id for id in tokens if not 0 <= id < self.n_vocab)
            wrong = next((id for id in outside if id >= 0 or table.span_of(id) is None), None)
        if wrong is not None:
            raise UsageError(f"tokens: token id {wrong} is not in the vocabulary of {self.n_vocab} tokens")
        return tokens
