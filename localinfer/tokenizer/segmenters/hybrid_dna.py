"""Byte-level BPE with genes in between, `tokenizer.ggml.model` = "hybriddna": <dna>ACGTTA...</dna>.

Between the two marks each six letters are one token, whose text in the file ends with a private character: CCCCCC
may be a word as well.
"""

import re

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.marks import find
from localinfer.tokenizer.pretokenizers import PreTokenizer
from localinfer.tokenizer.segmenters.byte_level import ByteLevelBPE

OPEN, CLOSE, UNKNOWN = "<dna>", "</dna>", "<oov>"
LENGTH = 6  # bytes
FILLER = b"A"
MARKER = "\ue000".encode()
GENE = re.compile(rf"{OPEN}(.*?)(?:({CLOSE})|\Z)", re.DOTALL)


class HybridDna(ByteLevelBPE):
    """Without its three marks a vocabulary is like any other of byte-level BPE."""

    def __init__(self, f: GGUF, pre: PreTokenizer) -> None:
        super().__init__(f, pre)
        self._marks = find(self.vocabulary.tokens, (OPEN, CLOSE, UNKNOWN))
        self._gene_ids = {token: id for id, token in enumerate(self.vocabulary.tokens) if token.endswith(MARKER)}

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """The ids of a text without special tokens; a gene goes on to the end of the text if nothing closes it."""
        if len(self._marks) < 3:
            return super().encode(text, after_special=after_special)
        ids: list[int] = []
        place = 0
        for gene in GENE.finditer(text):
            if place < gene.start():
                ids += super().encode(text[place : gene.start()], after_special=after_special)
            ids += [self._marks[OPEN], *self._letters(gene[1]), *([self._marks[CLOSE]] if gene[2] else [])]
            place = gene.end()
        return ids + (super().encode(text[place:], after_special=after_special) if place < len(text) else [])

    def piece(self, id: int) -> bytes:
        token = self.vocabulary.tokens[id]
        return token.removesuffix(MARKER) if token in self._gene_ids else super().piece(id)

    def _letters(self, gene: str) -> list[int]:
        """Six bytes a token, the last ones filled up; what is none of A, C, G and T is unknown."""
        content = gene.encode().upper()
        parts = (content[place : place + LENGTH].ljust(LENGTH, FILLER) for place in range(0, len(content), LENGTH))
        return [self._gene_ids.get(part + MARKER, self._marks[UNKNOWN]) for part in parts]
