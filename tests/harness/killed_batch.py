"""A batch job that is killed at random moments and started again each time."""

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
MAX_NEW_ANSWERS = 4  # the most answers between a start and the kill


def write_prompts(path: Path) -> None:
    """Write the input file of the job."""
    requests = [{"custom_id": f"request-{n}", "prompt": f"Count to {n}.", "seed": n} for n in range(LINES)]
    path.write_text("".join(json.dumps(each) + "\n" for each in requests))


def command(model: str, prompts: Path, out: Path) -> list[str]:
    """Return the command line of the job."""
    line = [sys.executable, "-m", "localinfer", "batch", model, prompts, "-o", out, "-n", TOKENS, "-t", 1, "-c", 512]
    return [str(argument) for argument in line]


def start_and_kill(line: Sequence[str], out: Path, environment: Mapping[str, str], dice: random.Random) -> bool:
    """Start the job and kill it after some answers. Return False if it finished before."""
    process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    enough = count_answers(out) + dice.randint(0, MAX_NEW_ANSWERS)
    while process.poll() is None and count_answers(out) < enough:
        time.sleep(0.002)
    time.sleep(dice.random() * 0.2)
    process.kill()
    _, err = process.communicate()
    assert process.returncode in (0, -9), err
    return process.returncode != 0


def count_answers(out: Path) -> int:
    """Return the number of lines in the output file."""
    return out.read_bytes().count(b"\n") if out.exists() else 0


def check_each_answered_once(out: Path) -> None:
    """Check that each request has exactly one successful answer, in the order of the prompts."""
    actual = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [each["custom_id"] for each in actual] == [f"request-{n}" for n in range(LINES)]
    assert all(each["response"]["status_code"] == 200 for each in actual)


def run_with_kills(model: str, folder: Path, kills: int, seed: int, environment: Mapping[str, str] = os.environ) -> int:
    """Kill a job `kills` times, then let it finish. Return the number of answers at the last kill."""
    prompts, out, dice, done = folder / "prompts.jsonl", folder / "out.jsonl", random.Random(seed), 0
    write_prompts(prompts)
    for _ in range(kills):
        if not start_and_kill(command(model, prompts, out), out, environment, dice):
            out.unlink()  # the job finished: start again from the beginning
        done = count_answers(out)
    subprocess.run(command(model, prompts, out), env=environment, check=True, capture_output=True)
    check_each_answered_once(out)
    return done
