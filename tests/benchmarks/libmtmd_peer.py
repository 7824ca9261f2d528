"""libmtmd, llama.cpp's library of image and sound encoders, as a subprocess beside the benchmark."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

ENGINE = Path(__file__).with_name("libmtmd_engine.py")
ABORT = re.compile(r"\.c(pp)?:\d+: ")  # the line with the place of a failed assertion


class PeerError(Exception):
    """libmtmd does not run, or refuses the files."""


class Peer:
    """libmtmd with a model, a projector, and an image (uint8 (height, width, 3)) or a sound (float32 (n,)).

    `rows` are float32 (n_rows, embedding length). Raises PeerError if it cannot encode.
    """

    def __init__(self, model: Path, projector: Path, media: NDArray[np.generic], folder: Path, threads: int) -> None:
        np.save(folder / "media.npy", media)
        arguments = [model, projector, folder / "media.npy", folder / "rows.npy", threads]
        self._process = subprocess.Popen(
            [sys.executable, ENGINE, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(folder / "libmtmd.log").open("w"), text=True,
        )  # fmt: skip
        assert self._process.stdin
        assert self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        if self._output.readline() != "ready\n":
            self.close()
            raise PeerError(last_error((folder / "libmtmd.log").read_text(errors="replace").splitlines()))
        self.rows: NDArray[np.float32] = np.load(folder / "rows.npy")

    def seconds(self) -> float:
        """Encode again and return the seconds."""
        self._input.write("\n")
        self._input.flush()
        return float(self._output.readline())

    def close(self) -> None:
        """End the subprocess."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._process.wait()


def quantized(projector: Path, type: str) -> Path:
    """Return a file beside a projector file with its matrices in another type, which is written unless it exists."""
    path = projector.with_name(f"{projector.stem}-{type}.gguf")
    if not path.exists():
        command = [sys.executable, "-m", "cli", "quantize", projector, path, type]
        subprocess.run(command, cwd=ENGINE.parents[2], check=True, capture_output=True)
    return path


def last_error(lines: list[str]) -> str:
    """Return why libmtmd has ended: a failed assertion and the line before it, or the last line."""
    for before, line in pairwise(["", *lines]):
        if ABORT.search(line):
            return f"{before}: {line.rpartition('/')[2]}"
    return lines[-1] if lines else "no message"


def compare_encoders(encode: Callable[[], NDArray[np.float32]], peer: Peer, rounds: int) -> str:
    """Encode in turns with libmtmd. Return the median seconds of both, the median of the ratios of adjacent runs, and
    the largest difference of the rows."""
    with contextlib.closing(peer):
        rows, ours, theirs = encode(), [], []
        for _ in range(rounds):
            start = time.perf_counter()
            encode()
            ours.append(time.perf_counter() - start)
            theirs.append(peer.seconds())
    ratios = sorted(their / our for their, our in zip(theirs, ours, strict=True))
    return (
        f"localinfer {median(ours):.3f} s, libmtmd {median(theirs):.3f} s: {median(ratios):.2f} times as fast"
        f" ({ratios[0]:.2f} to {ratios[-1]:.2f}); {describe_difference(rows, peer.rows)}"
    )


def describe_difference(rows: NDArray[np.float32], theirs: NDArray[np.float32]) -> str:
    """Return the largest difference of rows, as a fraction of the largest value; libmtmd may pad with more rows."""
    if rows.shape[1] != theirs.shape[1] or len(rows) > len(theirs):
        return f"rows {rows.shape}, libmtmd {theirs.shape}"
    difference = np.abs(rows - theirs[: len(rows)]).max() / np.abs(theirs).max()
    return f"{len(rows)} and {len(theirs)} rows, which differ by {difference:.1e} of the largest value"
