"""Estimates how many cycles a CPU needs for a sequence of instructions that is repeated, with llvm-mca."""

import re
import shutil
import subprocess
from collections.abc import Sequence

from assembly_loops import Instruction

ITERATIONS = 100
VERSIONS = range(30, 13, -1)


def find_tool(name: str) -> str | None:
    """Return the path of a program of LLVM, the newest version of it that is installed."""
    names = [*(f"{name}-{version}" for version in VERSIONS), name]
    return next((path for path in map(shutil.which, names) if path), None)


def version(tool: str) -> str:
    """Return the version of a program of LLVM."""
    text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\S+)", text)
    return found[1] if found else "unknown"


def cycles(tool: str, cpu: str, instructions: Sequence[Instruction]) -> float:
    """Return the cycles for an iteration, in the steady state of a loop."""
    command = [tool, "-mtriple=aarch64-unknown-linux-gnu", f"-mcpu={cpu}", f"-iterations={ITERATIONS}"]
    text = "".join(f"\t{each.text}\n" for each in instructions)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    found = re.search(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)
    if not found:
        raise RuntimeError(f"llvm-mca for {cpu}: {done.stderr[:500]}")
    return int(found[1]) / ITERATIONS
