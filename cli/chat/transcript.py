"""A file with all that is said, as llama-cli writes it."""

from pathlib import Path

from cli.files import write_whole
from localinfer.errors import LocalInferError


class Transcript:
    """Begins empty, whatever was there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_whole(path, b"")

    def add(self, message: str, answer: str) -> None:
        try:
            with self.path.open("a", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(f"User:\n{message}\n\nAssistant:\n{answer}\n\n")
        except OSError as error:
            raise LocalInferError(f"{self.path}: {error.strerror}") from None
