"""`localinfer` with a model that needs no file: it repeats what it is asked, one word after the other.

    python tests/harness/talker.py chat anything.gguf

For tests of the command line: the same program, but fast and predictable. Words with a meaning of their own:

    slowly    a word every 0.1 s     wide   an emoji     escape   a control sequence
    overflow  the context is full    crash  something that should not happen
    full      the context is full behind the answer
    think     thoughts come first, a word every 0.1 s if slowly
    circles   the answer ends in the same word 200 times
    call      a call of the tool `echo`, and call NAME of another one
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import localinfer
from cli.__main__ import main
from localinfer.errors import ContextOverflow
from localinfer.generation.pieces import Alternative, Call, Piece
from localinfer.options import Options

ODD = {"wide": "\N{GRINNING FACE}", "escape": "\x1b]0;title\x07"}
Progress = Callable[[str, int, int], None]
Stats = SimpleNamespace


class Talker:
    """As much of `Model` as the commands use."""

    n_ctx = n_ctx_train = 2048
    engine = SimpleNamespace(sequence=[], kv_bytes=3 << 20)
    tokenizer = SimpleNamespace(eog=[102], encode=lambda text, **how: [len(text)])

    def __init__(self, name: str | Path, progress: Progress, **options: object) -> None:
        self.options = Options(**options)
        self.stats = stats(0, 0)
        for done in range(4):
            progress("compile", done, 3)
            time.sleep(0.02)

    def __enter__(self) -> "Talker":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def require_chat_template(self) -> None:
        pass

    def fitting(self, messages: Sequence[Mapping[str, str]], **how: object) -> list[Mapping[str, str]]:
        return list(messages)

    def render(self, messages: Sequence[Mapping[str, str]], **options: object) -> SimpleNamespace:
        return SimpleNamespace(ids=[len(messages)])

    def score(self, prompt: Sequence[int], ids: Sequence[int], logprobs: int) -> list[Piece]:
        """Each token had one chance in four, and so had three others."""
        quarter = math.log(0.25)
        top = tuple(Alternative(f" other {n}", 100 + n, quarter) for n in range(3))
        return [Piece(f" word {id}", id, logprob=quarter, entropy=-quarter, top=top) for id in ids]

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[str]:
        return [text + (" special" if parse_special else "")]

    def generate(self, prompt: Sequence[str], **options: object) -> Iterator[Piece]:
        yield from self.repeat(prompt[0])

    def chat(self, messages: Sequence[Mapping[str, str]], **options: object) -> Iterator[Piece]:
        system = options.get("system_prompt", self.options.system_prompt)
        asked = messages[-1]["content"].replace("\n", "|")
        begun = "".join(f"<{id}> " for id in options.get("begun", ()))  # type: ignore[attr-defined]
        told = {"logprob": -3.0, "entropy": 0.0} if options.get("logprobs") else {}
        for piece in self.repeat(f"{begun}{len(messages)}: {asked}" + (f" ({system})" if system else "")):
            yield replace(piece, **told)

    def repeat(self, text: str) -> Iterator[Piece]:
        words = text.split()
        if "overflow" in words:
            raise ContextOverflow("context is full: --ctx-size sets a larger one")
        if "crash" in words:
            raise ZeroDivisionError("division by zero")
        if "think" in words:
            yield from thoughts(0.1 if "slowly" in words else 0)
        words += ["round"] * 200 if "circles" in words else []
        limit = self.options.n_predict
        for number, word in enumerate(words[:limit] if limit != -1 else words):
            time.sleep(0.1 if "slowly" in words else 0)
            self.stats = stats(3, number + 1)
            yield Piece((" " if number else "") + ODD.get(word, word), 0 if word == "round" else number)
        if "call" in words[:2]:
            name = [*words[2:], "echo"][0]
            yield Piece("", 9, calls=(Call(name, {"text": "a\x1bb"}, "call00000"),))
        if "full" in words:
            raise ContextOverflow("the context is full")


def thoughts(seconds: float) -> Iterator[Piece]:
    yield Piece("<think>", 1, "tag")
    for word in ("\nLet", " me", " see", ".\n"):
        time.sleep(seconds)
        yield Piece(word, 2, "thought")
    yield Piece("</think>", 3, "tag")


def stats(prompt: int, generated: int) -> Stats:
    return Stats(
        prompt_tokens=prompt, reused_tokens=1, prompt_seconds=0.5, generated_tokens=generated,
        generate_seconds=0.25, drafted_tokens=0, accepted_tokens=0, gain=1.0, finish_reason="stop", seed=42,
    )  # fmt: skip


if __name__ == "__main__":
    localinfer.load = Talker  # type: ignore[assignment]
    main()
