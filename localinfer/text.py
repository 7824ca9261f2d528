"""Text of files and of users, made safe to show: one line, no escape sequence reaches a terminal."""


def printable(text: str | bytes, limit: int = 0) -> str:
    """`text` with every character that is not plainly visible escaped, cut to `limit` characters (0: whole).

    Control characters, invisible and bidirectional formatting, line separators and bytes that are not UTF-8
    become `\\x1b`, `\\u202e`, `\\xff`. Whole text of a file may be long: cut it where a line is expected.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    cut = bool(limit) and len(text) > limit
    shown = text[:limit] if cut else text
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else _escape(char) for char in shown)
    return f"{shown}..." if cut else shown


def _escape(char: str) -> str:
    """Bytes that are not UTF-8 live in strings as surrogates U+DC80..U+DCFF: shown as the bytes they are."""
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
