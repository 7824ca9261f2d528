"""A batch job that is killed again and again, at moments that nobody chose, and started anew each time."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LINES = 30
TOKENS = 6
MOST_NEW = 4  # answers between a start and the kill


def write_prompts(path: Path) -> None:
    asked = [{"custom_id": f"request-{n}", "prompt": f"Count to {n}.", "seed": n} for n in range(LINES)]
    path.write_text("".join(json.dumps(each) + "\n" for each in asked))


def command(model: str, prompts: Path, out: Path) -> list[str]:
    words = [sys.executable, "-m", "localinfer", "batch", model, prompts, "-o", out, "-n", TOKENS, "-t", 1, "-c", 512]
    return [str(word) for word in words]


def killed(line: Sequence[str], out: Path, environment: Mapping[str, str], dice: random.Random) -> bool:
    """Start the job, and kill it a moment after some answers have come; False if it came to its end before."""
    process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    enough = answers(out) + dice.randint(0, MOST_NEW)
    while process.poll() is None and answers(out) < enough:
        time.sleep(0.002)
    time.sleep(dice.random() * 0.2)
    process.kill()
    _, err = process.communicate()
    assert process.returncode in (0, -9), err
    return process.returncode != 0


def answers(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def require_each_once(out: Path) -> None:
    """In the order of the prompts."""
    found = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [each["custom_id"] for each in found] == [f"request-{n}" for n in range(LINES)]
    assert all(each["response"]["status_code"] == 200 for each in found)


def run(model: str, folder: Path, kills: int, seed: int, environment: Mapping[str, str] = os.environ) -> int:
    """Kill a job so many times, then let it end; how many answers were there at the last kill."""
    prompts, out, dice, done = folder / "prompts.jsonl", folder / "out.jsonl", random.Random(seed), 0
    write_prompts(prompts)
    for _ in range(kills):
        if not killed(command(model, prompts, out), out, environment, dice):
            out.unlink()  # it came to its end: once more from the beginning
        done = answers(out)
    subprocess.run(command(model, prompts, out), env=environment, check=True, capture_output=True)
    require_each_once(out)
    return done
