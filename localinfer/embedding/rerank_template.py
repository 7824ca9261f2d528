"""The template of a reranker's prompt, with which a decoder reads a query and a document.

    {query} {document}   the texts
    {instruction}        what makes a document relevant, in the template for prompts with an instruction
    {cut}                the texts on both sides are tokenized separately, as the authors of the model do

llama.cpp has the first two. Control tokens are those of the tokenizer, and no others are added.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from localinfer.errors import UsageError
from localinfer.gguf.pooling import RERANK_INSTRUCTION_TEMPLATE, RERANK_TEMPLATE
from localinfer.gguf.reader import GGUF

CUT = "{cut}"
PLACEHOLDER = re.compile(r"\{(query|document|instruction)\}")
NO_INSTRUCTION = "instruction (--instruction): this reranker takes none; it reads the texts alone"
QWEN3_INSTRUCTION = re.compile(r"(?<=<Instruct>: )[^\n]*(?=\n<Query>: )")


@dataclass(frozen=True)
class RerankTemplate:
    """The templates for prompts without and with an instruction, "" if the model has none."""

    text: str
    instruction_text: str

    @classmethod
    def read(cls, f: GGUF) -> "RerankTemplate":
        """Return the templates of a model file. Qwen3-Reranker's has an instruction, which another can replace."""
        text = f.get(RERANK_TEMPLATE, str, "")
        replaced, count = QWEN3_INSTRUCTION.subn("{instruction}", text)
        return cls(text, f.get(RERANK_INSTRUCTION_TEMPLATE, str, replaced if count else ""))

    def with_instruction(self, instruction: str) -> "FilledTemplate | None":
        """Return the template with the instruction, or None if the model has none.

        Raises UsageError for an instruction if the model takes none.
        """
        if instruction and not self.instruction_text:
            raise UsageError(NO_INSTRUCTION)
        text = self.instruction_text if instruction else self.text
        return FilledTemplate(text, instruction) if text else None


@dataclass(frozen=True)
class FilledTemplate:
    """A template and its instruction."""

    text: str
    instruction: str

    def encode(self, encode: Callable[[str], list[int]], query: str, document: str) -> list[int]:
        """Return the token ids of the prompt; `encode` tokenizes a text with control tokens."""
        values = {"query": query, "document": document, "instruction": self.instruction}
        pieces = [PLACEHOLDER.sub(lambda name: values[name[1]], piece) for piece in self.text.split(CUT)]
        return [id for piece in pieces if piece for id in encode(piece)]

    def ending(self, encode: Callable[[str], list[int]]) -> list[int]:
        """Return the token ids after the document."""
        return FilledTemplate(self.text.partition("{document}")[2], self.instruction).encode(encode, "", "")
