"""SentencePiece's precompiled normalization: the longest known beginning of a text is replaced, again and again.

The map is a blob: the size of a trie in bytes, u32; the trie, an array of units, u32; the replacements, each with
a NUL behind it. The trie is a double array (Aoe, 1989), as darts-clone packs it: the child that a byte leads to
lies at its parent's base XOR the byte.

    bits 10-30   the base XOR the unit's own place, in steps of 256 if bit 9 is set
    bit 8        at the base itself lies a leaf: its bits 0-30 are where a replacement begins
    bits 0-7     the byte that leads here; only a leaf has bit 31

Nothing in it is trusted: what lies outside counts as nothing.
"""

import struct

DEAD_END = -1
LEAF, LABEL, VALUE = 1 << 8, 1 << 31 | 0xFF, (1 << 31) - 1


class Charsmap:
    """An empty blob changes nothing."""

    def __init__(self, blob: bytes) -> None:
        size = min(int.from_bytes(blob[:4], "little"), len(blob)) // 4 * 4
        self._units = [unit for (unit,) in struct.iter_unpack("<I", blob[4 : 4 + size].ljust(size, b"\0"))]
        self._replacements = blob[4 + size :]
        self._steps: dict[tuple[int, str], tuple[int, str | None]] = {}

    def normalize(self, text: str) -> str:
        if not self._units:
            return text
        parts = []
        start = 0
        while start < len(text):
            replacement, start = self._longest(text, start)
            parts.append(replacement)
        return "".join(parts)

    def _longest(self, text: str, start: int) -> tuple[str, int]:
        """What takes the place of the text from `start`, and where that ends; a character by itself stays."""
        found = text[start], start + 1
        base = self._base(0)
        for place in range(start, len(text)):
            step = base, text[place]
            if step not in self._steps:
                self._steps[step] = self._walk(*step)
            base, replacement = self._steps[step]
            if replacement is not None:
                found = replacement, place + 1
            if base == DEAD_END:
                break
        return found

    def _walk(self, base: int, char: str) -> tuple[int, str | None]:
        """Over the bytes of a character, to another base; with the replacement there, if any."""
        unit = 0
        for byte in char.encode():
            child = base ^ byte
            unit = self._unit(child)
            if not byte or unit & LABEL != byte:
                return DEAD_END, None
            base = self._base(child)
        return base, self._replacement(self._unit(base) & VALUE) if unit & LEAF else None

    def _unit(self, place: int) -> int:
        return self._units[place] if place < len(self._units) else 0

    def _base(self, place: int) -> int:
        unit = self._unit(place)
        return place ^ (unit >> 10 & 0x1FFFFF) << (8 if unit & 1 << 9 else 0)

    def _replacement(self, start: int) -> str:
        end = self._replacements.find(b"\0", start)
        return self._replacements[start : max(start, end)].decode("utf-8", "replace")
