"""Byte-level BPE with DNA sequences, `tokenizer.ggml.model` = "hybriddna": <dna>ACGTTA...</dna>.

Between the two tags every six letters are one token, whose text in the file ends with a private-use character,
because CCCCCC may also be a normal word.
"""

import re

from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.known_special_tokens import find_tokens
from localinfer.tokenizer.pretokenizers import PreTokenizer
from localinfer.tokenizer.segmenters.byte_level import ByteLevelBPE

OPEN, CLOSE, UNKNOWN = "<dna>", "</dna>", "<oov>"
LENGTH = 6  # bytes
FILLER = b"A"
MARKER = "\ue000".encode()
GENE = re.compile(rf"{OPEN}(.*?)(?:({CLOSE})|\Z)", re.DOTALL)


class HybridDna(ByteLevelBPE):
    """Byte-level BPE with DNA sequences; without the three tag tokens it is plain byte-level BPE."""

    def __init__(self, f: GGUF, pre: PreTokenizer) -> None:
        super().__init__(f, pre)
        self._tag_ids = find_tokens(self.vocabulary.tokens, (OPEN, CLOSE, UNKNOWN))
        self._gene_ids = {token: id for id, token in enumerate(self.vocabulary.tokens) if token.endswith(MARKER)}

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens. An unclosed sequence extends to the end of the text."""
        if len(self._tag_ids) < 3:
            return super().encode(text, after_special=after_special)
        ids: list[int] = []
        position = 0
        for gene in GENE.finditer(text):
            if position < gene.start():
                ids += super().encode(text[position : gene.start()], after_special=after_special)
            ids += [self._tag_ids[OPEN], *self._letters(gene[1]), *([self._tag_ids[CLOSE]] if gene[2] else [])]
            position = gene.end()
        return ids + (super().encode(text[position:], after_special=after_special) if position < len(text) else [])

    def piece(self, id: int) -> bytes:
        token = self.vocabulary.tokens[id]
        return token.removesuffix(MARKER) if token in self._gene_ids else super().piece(id)

    def _letters(self, gene: str) -> list[int]:
        """Return one token per six bytes, the last one padded; other letters than A, C, G and T make it unknown."""
        content = gene.encode().upper()
        segments = (content[start : start + LENGTH].ljust(LENGTH, FILLER) for start in range(0, len(content), LENGTH))
        return [self._gene_ids.get(segment + MARKER, self._tag_ids[UNKNOWN]) for segment in segments]
