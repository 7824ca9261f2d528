"""Escaping of untrusted text for display: no terminal escape sequences, and nothing that changes the order of the text.

terminal_text   keeps lines and tabs, and the joiners of emoji and of Persian; for texts
printable       escapes whatever is not visible; for names and errors, in one line
shell_word      the same, quoted as a word of a command line
"""

import os
import re

# C0 but tab and newline, DEL and C1, all bidirectional controls of Unicode, line and paragraph separator
TERMINAL_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
PLAIN = re.escape(os.sep) + r"\w@%+=:,./~\-"  # characters that a shell does not interpret
PLAIN_WORD = re.compile(f"[{PLAIN}][{PLAIN}#]*")
QUOTABLE = re.compile(r"[^\"$`!]*" if os.sep == "\\" else r"[^\"$`!\\]*")  # stands for itself between double quotes


def terminal_text(text: str) -> str:
    """Return `text` with every character escaped that a terminal would interpret, except tabs and newlines."""
    return TERMINAL_CONTROLS.sub(lambda found: _escape(found[0]), text)


def printable(text: str | bytes, limit: int = 0) -> str:
    """Return `text` with every non-printable character escaped, cut to `limit` characters (0: no limit).

    Control characters, invisible and bidirectional formatting characters, line separators and bytes that are not UTF-8
    become `\\x1b`, `\\u202e`, `\\xff`.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    cut = bool(limit) and len(text) > limit
    shown = text[:limit] if cut else text
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else _escape(char) for char in shown)
    return f"{shown}..." if cut else shown


def shell_word(text: str) -> str:
    """Return a word of a command line that a hint shows: quoted if it contains spaces or the like."""
    shown = printable(text)
    if PLAIN_WORD.fullmatch(shown):
        return shown
    return f'"{shown}"' if QUOTABLE.fullmatch(shown) else "'" + shown.replace("'", "'\\''") + "'"


def _escape(char: str) -> str:
    """Return the escape sequence of a character. Surrogates U+DC80..U+DCFF stand for bytes that are not UTF-8."""
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
