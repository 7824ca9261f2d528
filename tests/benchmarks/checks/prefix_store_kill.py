"""Kills programs that write to the prefix store, and compares what others restore from it with fresh evaluations.

    python tests/benchmarks/checks/prefix_store_kill.py --kills 200      # about five minutes

Two programs at a time answer prompts of a tiny model, with a common store that is smaller than all prefixes together.
They are killed at random times. After each kill, a tenth of the bytes of a random file are flipped, and another program
must give the same answers and logits as one without a store. Needs the dependency group `test`.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import tiny  # noqa: E402

import localinfer  # noqa: E402

IDS = np.random.default_rng(0).integers(3, 260, 12_000).tolist()
STORE_GIB = 0.004
MAX_SECONDS = 1.5  # until a program is killed, after it has started


def logits_after(model: localinfer.Model, prompt: list[int]) -> list[float]:
    """Answer a prompt, and return the logits after the answer."""
    text = [piece.id for piece in model.stream(prompt, n_predict=3)]
    values: list[float] = model.engine.evaluate(text[-1:]).tolist()
    return values


def open_model(path: Path, *, stored: bool) -> localinfer.Model:
    """Load the model, with or without the store."""
    options = {"ctx_size": 4096, "threads": 1, "temp": 0, "tune": False, "prefix_store_size": STORE_GIB}
    return localinfer.load(path, prefix_store=stored, **options)  # type: ignore[arg-type]


def prompt_of(number: int) -> list[int]:
    """Return a prompt; those of equal parity begin alike."""
    return [*IDS[1500 * (number % 2) : 1500 * (number % 2) + 600], *IDS[3000 + 300 * number : 3600 + 300 * number]]


def work(path: Path, first: int) -> None:
    """Answer prompts for ever."""
    print("started", flush=True)
    while True:
        with open_model(path, stored=True) as model:
            for number in range(first, first + 3):
                logits_after(model, prompt_of(number % 20))
        first += 1


def damage(store: Path, randomness: random.Random) -> None:
    """Flip a tenth of the bytes of a file."""
    files = [each for each in store.glob("*/*") if each.suffix in (".block", ".state")]
    if files:
        path = randomness.choice(files)
        content = np.fromfile(path, np.uint8)
        at = np.random.default_rng(randomness.randrange(1 << 30)).integers(0, len(content), len(content) // 10)
        content[at] ^= 0xFF
        path.write_bytes(content.tobytes())


def main() -> None:
    """Kill programs, and report how many answers were compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="the number of kills")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model:
        work(arguments.model, arguments.work)
    randomness, restored = random.Random(0), 0
    with TemporaryDirectory() as folder:
        store = Path(folder) / "prefixes"
        llama, gemma = (Path(folder) / name for name in ("llama.gguf", "gemma.gguf"))
        models = [tiny.tiny_llama(llama, n_ctx=4096), tiny.tiny_gemma3(gemma, n_ctx=4096)]
        environment = os.environ | {"LOCALINFER_CACHE_DIR": folder}
        os.environ["LOCALINFER_CACHE_DIR"] = folder
        expected = []
        for path in models:
            with open_model(path, stored=False) as model:
                expected.append([logits_after(model, prompt_of(number)) for number in range(20)])
        for kill in range(arguments.kills):
            which = kill % len(models)
            command = [sys.executable, __file__, "--model", str(models[which]), "--work"]
            programs = [
                subprocess.Popen([*command, str(randomness.randrange(20))], stdout=subprocess.PIPE, env=environment)
                for _ in range(2)
            ]
            for program in programs:
                assert program.stdout
                program.stdout.readline()
            for program in programs:
                time.sleep(randomness.random() * MAX_SECONDS)
                program.send_signal(signal.SIGKILL)
                program.wait()
            damage(store, randomness)
            with open_model(models[which], stored=True) as model:
                for number in randomness.sample(range(20), 3):
                    stream = model.stream(prompt_of(number), n_predict=3)
                    text = [piece.id for piece in stream]
                    restored += stream.stats.reused_tokens > 0
                    assert model.engine.evaluate(text[-1:]).tolist() == expected[which][number], (kill, number)
        left = sum(each.stat().st_size for each in store.glob("*/*"))
    compared = f"{3 * arguments.kills} answers are equal, {restored} of them restored"
    print(f"{arguments.kills} kills; {compared}; {left:,} bytes are left")


if __name__ == "__main__":
    main()
