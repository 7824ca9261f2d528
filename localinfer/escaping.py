"""Escaping of untrusted text for display: one line, without terminal escape sequences."""


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


def _escape(char: str) -> str:
    """Return the escape sequence of a character. Surrogates U+DC80..U+DCFF stand for bytes that are not UTF-8."""
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
