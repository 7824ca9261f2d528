"""The log file of a conversation, in the format of llama-cli."""

from pathlib import Path

from cli.files.output_files import write_atomically
from localinfer.errors import LocalInferError


class Transcript:
    """A log file, which is truncated at the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_atomically(path, b"")

    def add(self, message: str, answer: str) -> None:
        try:
            with self.path.open("a", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(f"User:\n{message}\n\nAssistant:\n{answer}\n\n")
        except OSError as error:
            raise LocalInferError(f"{self.path}: {error.strerror}") from None
