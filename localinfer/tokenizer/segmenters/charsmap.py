"""SentencePiece's precompiled normalization map: the longest known prefix of the text is replaced, repeatedly.

The map is a binary blob: the size of a trie in bytes, u32; the trie, an array of u32 units; and the replacements,
each terminated by NUL. The trie is a double array (Aoe, 1989) as packed by darts-clone: the child for a byte is at
its parent's base XOR the byte.

    bits 10-30   the base XOR the unit's own index, in steps of 256 if bit 9 is set
    bit 8        a leaf is at the base itself: its bits 0-30 are the offset of a replacement
    bits 0-7     the byte of the edge to this unit; only a leaf has bit 31

The blob is untrusted: out-of-range indices act as empty units.
"""

import struct

DEAD_END = -1
LEAF, LABEL, VALUE = 1 << 8, 1 << 31 | 0xFF, (1 << 31) - 1


class Charsmap:
    """A normalization map. An empty blob changes nothing."""

    def __init__(self, blob: bytes) -> None:
        size = min(int.from_bytes(blob[:4], "little"), len(blob)) // 4 * 4
        self._units = [unit for (unit,) in struct.iter_unpack("<I", blob[4 : 4 + size].ljust(size, b"\0"))]
        self._replacements = blob[4 + size :]
        self._steps: dict[tuple[int, str], tuple[int, str | None]] = {}

    def normalize(self, text: str) -> str:
        if not self._units:
            return text
        replacements = []
        start = 0
        while start < len(text):
            replacement, start = self._longest(text, start)
            replacements.append(replacement)
        return "".join(replacements)

    def _longest(self, text: str, start: int) -> tuple[str, int]:
        """Return the replacement of the text from `start` and the end of the replaced text; unknown characters stay."""
        longest = text[start], start + 1
        base = self._base(0)
        for position in range(start, len(text)):
            transition = base, text[position]
            if transition not in self._steps:
                self._steps[transition] = self._walk(*transition)
            base, replacement = self._steps[transition]
            if replacement is not None:
                longest = replacement, position + 1
            if base == DEAD_END:
                break
        return longest

    def _walk(self, base: int, char: str) -> tuple[int, str | None]:
        """Follow the bytes of a character from `base`. Return the new base and the replacement there, if any."""
        unit = 0
        for byte in char.encode():
            child = base ^ byte
            unit = self._unit(child)
            if not byte or unit & LABEL != byte:
                return DEAD_END, None
            base = self._base(child)
        return base, self._replacement(self._unit(base) & VALUE) if unit & LEAF else None

    def _unit(self, index: int) -> int:
        return self._units[index] if index < len(self._units) else 0

    def _base(self, index: int) -> int:
        unit = self._unit(index)
        return index ^ (unit >> 10 & 0x1FFFFF) << (8 if unit & 1 << 9 else 0)

    def _replacement(self, start: int) -> str:
        end = self._replacements.find(b"\0", start)
        return self._replacements[start : max(start, end)].decode("utf-8", "replace")
