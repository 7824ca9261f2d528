"""`localinfer` with a fake model that needs no file: it repeats the prompt word by word.

  python tests/harness/fake_model.py chat anything.gguf

Tests of the command line run the same program, but fast and predictably. Some words of the prompt have an effect:

  slowly    a word every 0.1 s     wide   an emoji     escape   a control sequence
  overflow  the context is full    crash  an unexpected exception
  full      the context is full after the answer
  prefill   nothing happens for five seconds
  why       /why and /branch take five seconds
  forget    only this message fits in the context
  think     reasoning comes first, a word every 0.1 s if slowly
  circles   the answer ends in the same word 200 times
  call      a call of the tool `echo`; call NAME calls another one
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import localinfer
from cli.__main__ import main
from localinfer.errors import ContextOverflowError, UsageError
from localinfer.generation.pieces import Alternative, Piece, Stats, ToolCall
from localinfer.generation.result import GenerationStream
from localinfer.model.media_encoder import MediaInfo
from localinfer.options import Options

SPECIAL_WORDS = {"wide": "\N{GRINNING FACE}", "escape": "\x1b]0;title\x07"}
Progress = Callable[[str, int, int], None]


class FakeModel:
    """The part of `Model`'s interface that the commands use."""

    n_ctx_train = 2048
    metadata = {"general.architecture": "llama"}  # noqa: RUF012
    engine = SimpleNamespace(
        sequence=[],
        compiled_graph=SimpleNamespace(
            model_graph=SimpleNamespace(cache_bytes=3 << 20, context=SimpleNamespace(causal=True))
        ),
    )
    media_kinds = frozenset({"image"})
    is_diffusion = False
    tokenizer = SimpleNamespace(eog=[102], encode=lambda text, **how: [len(text)])

    def __init__(self, name: str | Path, progress: Progress, **options: object) -> None:
        self.options = Options(**options)
        self.n_ctx = self.options.ctx_size or self.n_ctx_train
        for done in range(4):
            progress("compile", done, 3)
            time.sleep(0.02 if sys.stderr.isatty() else 0)  # long enough to see the progress on a terminal

    def __enter__(self) -> "FakeModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def require_chat_template(self) -> None:
        pass

    def truncate_messages(self, messages: Sequence[Mapping[str, str]], **how: object) -> list[Mapping[str, str]]:
        return list(messages[-1:] if "forget" in text_of(messages[-1]) else messages)

    def render(self, messages: Sequence[Mapping[str, str]], **options: object) -> SimpleNamespace:
        if "why" in text_of(messages[-1]).split():
            time.sleep(5)
        return SimpleNamespace(ids=[len(messages)])

    def score(self, prompt: Sequence[int], ids: Sequence[int], logprobs: int) -> list[Piece]:
        """Return pieces whose tokens, and three alternatives each, have probability 1/4."""
        quarter = math.log(0.25)
        top = tuple(Alternative(f" other {n}", 100 + n, quarter) for n in range(3))
        return [Piece(f" word {id}", id, logprob=quarter, entropy=-quarter, top=top) for id in ids]

    def media_info(self, source: bytes | Mapping[str, bytes], *, name: str) -> MediaInfo:
        if isinstance(source, Mapping):
            return MediaInfo("video", 40, width=4, height=3, seconds=2.0, n_frames=5)
        if not source.startswith(b"\x89PNG"):
            raise UsageError(f"{name}: not an image")
        return MediaInfo("image", 16, width=4, height=3)

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, media: Sequence[bytes] = ()
    ) -> list[str]:
        return ["".join(map(shown, media)) + text + (" special" if parse_special else "")]

    def stream(self, prompt: Sequence[str], **options: object) -> GenerationStream:
        stats = Stats(seed=42)
        return GenerationStream(self.repeat(prompt[0], stats), stats)

    def stream_chat(self, messages: Sequence[Mapping[str, str]], **options: object) -> GenerationStream:
        stats = Stats(seed=42)
        return GenerationStream(self.answer(messages, stats, options), stats)

    def answer(
        self, messages: Sequence[Mapping[str, str]], stats: Stats, options: Mapping[str, object]
    ) -> Iterator[Piece]:
        system = options.get("system_prompt", self.options.system_prompt)
        question = text_of(messages[-1]).replace("\n", "|")
        prefix = "".join(f"<{id}> " for id in options.get("prefix_ids", ()))  # type: ignore[attr-defined]
        token_scores = {"logprob": -3.0, "entropy": 0.0} if options.get("logprobs") else {}
        for piece in self.repeat(f"{prefix}{len(messages)}: {question}" + (f" ({system})" if system else ""), stats):
            yield replace(piece, **token_scores)

    def repeat(self, text: str, stats: Stats) -> Iterator[Piece]:
        words = text.split()
        if "overflow" in words:
            raise ContextOverflowError("context is full: --ctx-size sets a larger one")
        if "prefill" in words:
            time.sleep(5)
        if "crash" in words:
            raise ZeroDivisionError("division by zero")
        if "think" in words:
            yield from reasoning_pieces(0.1 if "slowly" in words else 0)
        words += ["round"] * 200 if "circles" in words else []
        limit = self.options.n_predict
        for number, word in enumerate(words[:limit] if limit != -1 else words):
            time.sleep(0.1 if "slowly" in words else 0)
            stats.prompt_tokens, stats.reused_tokens, stats.prompt_seconds = 3, 1, 0.5
            stats.generated_tokens, stats.generate_seconds, stats.finish_reason = number + 1, 0.25, "stop"
            yield Piece((" " if number else "") + SPECIAL_WORDS.get(word, word), 0 if word == "round" else number)
        if "call" in words[:2]:
            name = [*words[2:], "echo"][0]
            yield Piece("", 9, calls=(ToolCall(name, {"text": "a\x1bb"}, "call00000"),))
        if "full" in words:
            stats.prompt_tokens = self.n_ctx  # the last token was not evaluated
            raise ContextOverflowError("the context is full")


def text_of(message: Mapping[str, object]) -> str:
    """Return the text of a message, with the sizes of images and videos."""
    content = message["content"]
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(part["text"]) if "text" in part else shown(part) for part in parts)


def shown(media: bytes | Mapping[str, object]) -> str:
    """Return the kind and the size of an image, or of a part of a message."""
    kind = str(media["type"]) if isinstance(media, Mapping) else "image"
    content = media[kind] if isinstance(media, Mapping) else media
    size = len(content.read_bytes() if isinstance(content, Path) else content)  # type: ignore[arg-type]
    return f"<{kind} of {size} bytes>"


def reasoning_pieces(seconds: float) -> Iterator[Piece]:
    yield Piece("<think>", 1, "tag")
    for word in ("\nLet", " me", " see", ".\n"):
        time.sleep(seconds)
        yield Piece(word, 2, "reasoning")
    yield Piece("</think>", 3, "tag")


if __name__ == "__main__":
    localinfer.load = FakeModel  # type: ignore[assignment]
    main()
