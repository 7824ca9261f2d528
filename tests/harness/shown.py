"""What a terminal shows of an object, and a text with characters that HTML and terminals must not interpret."""

from io import StringIO

from rich.console import Console

TEXT = "Hello and <b>the</b> [red]other\none"


def in_terminal(view: object) -> str:
    """Return what rich prints, without colours."""
    shown = StringIO()
    Console(width=300, file=shown).print(view)
    return shown.getvalue()
