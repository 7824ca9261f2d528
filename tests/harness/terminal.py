"""A program in a pseudo-terminal: send keystrokes and read the screen output."""

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

ESCAPE_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A program in a pseudo-terminal. `text` is all of its output without escape sequences and carriage returns."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int = 80) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C becomes a signal
        )  # fmt: skip
        os.close(slave)
        self.text = ""
        self.raw = b""
        self.position = 0

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def ctrl(self, letter: str) -> None:
        """Press Ctrl and a letter, after a delay: readline shows its prompt a moment before it reads input."""
        time.sleep(0.2)
        os.write(self.master, bytes([ord(letter.upper()) - 64]))

    def expect(self, text: str, seconds: float = 20) -> str:
        """Wait until `text` appears after the previous match, and return the output from there to its end."""
        end = time.monotonic() + seconds
        while (actual := self.text.find(text, self.position)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.text[self.position :]!r}"
            assert self._read(0.05) or self.process.poll() is None, f"ended before {text!r}: {self.text!r}"
        begin, self.position = self.position, actual + len(text)
        return self.text[begin : self.position]

    def wait(self, seconds: float = 20) -> int:
        """Wait for the program to end, and return its exit code."""
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
        """Read available output. Return False if there was none."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            chunk = os.read(self.master, 65536)
        except OSError:  # the program closed the terminal
            return False
        self.raw += chunk
        self.text = ESCAPE_SEQUENCES.sub("", self.raw.decode(errors="replace")).replace("\r", "")
        return bool(chunk)
