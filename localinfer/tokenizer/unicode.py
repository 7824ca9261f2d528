"""Unicode categories (letters, numbers, marks, ...) as of Unicode 15.1, the version of llama.cpp's tables.

Oniguruma, which splits text here, implements Unicode 16. Word boundaries decide which bytes may merge, so characters
that are new in Unicode 16 are treated as unassigned.
"""

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

# Characters that are new in Unicode 16. Code points between them are unassigned in every version.
NEWER = "".join(
    rf"\x{{{first:x}}}-\x{{{last:x}}}"
    for first, last in (
        (0x897, 0x897), (0x1B4E, 0x1B4F), (0x1B7F, 0x1B7F), (0x1C89, 0x1C8A), (0x2427, 0x2429),
        (0x31E4, 0x31E5), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC), (0x105C0, 0x105F3), (0x10D40, 0x10D8F),
        (0x10EC2, 0x10EFC), (0x11380, 0x113E2), (0x116D0, 0x116E3), (0x11BC0, 0x11BF9), (0x11F5A, 0x11F5A),
        (0x13460, 0x143FA), (0x16100, 0x16139), (0x16D40, 0x16D79), (0x18CFF, 0x18CFF), (0x1CC00, 0x1CEB3),
        (0x1E5D0, 0x1E5FF), (0x1F8B2, 0x1F8C1), (0x1FA89, 0x1FA8F), (0x1FABE, 0x1FABE), (0x1FAC6, 0x1FAC6),
        (0x1FADC, 0x1FADF), (0x1FAE9, 0x1FAE9), (0x1FBCB, 0x1FBEF),
    )
)  # fmt: skip

WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)  # Unicode's White_Space property; str.split() also splits at U+001C to U+001F


def pin_unicode_version(pattern: str) -> str:
    """Return the same regular expression for Oniguruma, with \\p{L}, ... restricted to Unicode 15.1."""
    return re.sub(r"\\p\{\w+\}", lambda category: rf"[{category[0]}&&[^{NEWER}]]", pattern)


def characters_in(text: str, category: str) -> set[str]:
    """Return the characters of `text` that are in a category, written as \\p{N} or [\\p{L}\\p{M}]."""
    characters = set(text)
    others = _without(category).pre_tokenize_str("".join(characters))
    return characters.difference(*(piece for piece, _ in others))


@cache
def _without(category: str) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pin_unicode_version(category)), "removed")


def simple_lower(char: str) -> str:
    """Return the simple lowercase mapping of one character. str.lower() makes two characters of İ and is
    context-sensitive for Σ.
    """
    return char.lower()[0]
