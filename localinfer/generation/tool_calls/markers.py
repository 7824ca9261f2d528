"""Markers, such as tags and delimiters, in a text that is not complete."""

from collections.abc import Collection


def find_marker(text: str, markers: Collection[str], is_all: bool) -> tuple[int, str]:
    """Return the position of the first marker, and this marker; at one position the longest.

    Return "" for the marker if the text contains none before the position, where one may begin that is incomplete.
    """
    found = [(position, marker) for marker in markers if (position := text.find(marker)) >= 0]
    position, marker = min(found, key=lambda each: (each[0], -len(each[1])), default=(len(text), ""))
    incomplete = len(text) if is_all else incomplete_marker(text, markers)
    return (position, marker) if position < incomplete else (incomplete, "")


def incomplete_marker(text: str, markers: Collection[str]) -> int:
    """Return the position of the longest suffix of the text that is the beginning of a longer marker."""
    longest = max(map(len, markers), default=0) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    size = next((n for n in sizes if any(len(each) > n and each.startswith(text[-n:]) for each in markers)), 0)
    return len(text) - size
