"""A pseudo-terminal with a program in it: type into it, read what a person would see."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """`seen` is everything that came, less escape sequences and carriage returns."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int = 80) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C becomes a signal
        )  # fmt: skip
        os.close(slave)
        self.seen = ""
        self.raw = b""
        self.position = 0

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def press(self, letter: str) -> None:
        """Ctrl and a letter, not at once: readline shows its prompt a moment before it listens."""
        time.sleep(0.2)
        os.write(self.master, bytes([ord(letter.upper()) - 64]))

    def expect(self, text: str, seconds: float = 20) -> str:
        """Wait until `text` is seen, behind what was expected before; what was seen up to and with it."""
        end = time.monotonic() + seconds
        while (found := self.seen.find(text, self.position)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.seen[self.position :]!r}"
            assert self._read(0.05) or self.process.poll() is None, f"ended before {text!r}: {self.seen!r}"
        begin, self.position = self.position, found + len(text)
        return self.seen[begin : self.position]

    def code(self, seconds: float = 20) -> int:
        """Wait for the end; the exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.05)
        while self._read(0.0):
            pass
        return self.process.wait(0.1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def _read(self, seconds: float) -> bool:
        """Take in what is there; False if there was nothing."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            chunk = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            return False
        self.raw += chunk
        self.seen = SEQUENCES.sub("", self.raw.decode(errors="replace")).replace("\r", "")
        return bool(chunk)
