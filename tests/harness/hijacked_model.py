"""`localinfer` with a fake model that obeys whatever it reads: it repeats the last message, and its calls are parsed.

  CASES=cases.json python tests/harness/hijacked_model.py chat anything.gguf

The file of CASES is a list of objects: `markers` of a chat template, and `text`, an answer in its format. After the
message `case N`, the model answers with the text of a case. A tool result is repeated up to the line SEPARATOR.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fake_model import FakeModel
from tiny import tiny_llama

import localinfer
from cli.__main__ import main
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.tool_calls import answer_parser, parse_pieces
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import from_gguf

SEPARATOR = "\n---\n"


class HijackedModel(FakeModel):
    """Answers in the format of the last case that a message named."""

    def answer(
        self, messages: Sequence[Mapping[str, str]], stats: Stats, options: Mapping[str, object]
    ) -> Iterator[Piece]:
        cases = json.loads(Path(os.environ["CASES"]).read_text("utf-8"))
        named = [each["content"] for each in messages if str(each["content"]).startswith("case ")]
        case = cases[int(named[-1].split()[1])]
        last = messages[-1]["content"]
        text = case["text"] if last == named[-1] else last.partition(SEPARATOR)[0]
        stats.generated_tokens, stats.finish_reason = len(text), "stop"
        with TemporaryDirectory() as folder:
            tokenizer = from_gguf(open_gguf(tiny_llama(Path(folder) / "m.gguf")))
            parser = answer_parser(case["markers"], tokenizer, options.get("tools"))  # type: ignore[arg-type]
            yield from parse_pieces((Piece(char, number + 5) for number, char in enumerate(text)), parser)


if __name__ == "__main__":
    localinfer.load = HijackedModel  # type: ignore[assignment]
    main()
