"""What the server costs beside the engine alone, at rest, and under clients that leave.

    python tests/benchmarks/serving.py overhead MODEL     # one client, streaming; the engine alone in between
    python tests/benchmarks/serving.py idle MODEL         # seconds of CPU in half a minute without requests
    python tests/benchmarks/serving.py soak MODEL [SECONDS]
"""

import http.client
import json
import random
import statistics
import sys
import threading
import time

import psutil
from served import Served, events_of

from localinfer import load

PROMPT = "Once upon a time"
TOKENS, ROUNDS = 128, 12
CLIENTS, AT_A_TIME = 32, 8
ASKED = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}


def overhead(name: str) -> None:
    """Tokens a second by the clock of who takes them, in turns; the other one rests meanwhile."""
    ratios = []
    with load(name, ubatch_size=128) as model, Served(name) as server:
        for number in range(ROUNDS + 1):
            began = time.perf_counter()
            for _ in model.generate(PROMPT, n_predict=TOKENS, temp=0.0, ignore_eos=True):
                pass
            alone = time.perf_counter() - began
            began = time.perf_counter()
            server.events("/v1/completions", ASKED)
            served = time.perf_counter() - began
            if number:  # the first round compiles and reads
                ratios.append(served / alone)
                print(f"alone {TOKENS / alone:7.1f} t/s   served {TOKENS / served:7.1f} t/s   {ratios[-1]:.3f}")
    print(f"time of an answer, served beside alone: median {statistics.median(ratios):.3f}, least {min(ratios):.3f}")


def idle(name: str) -> None:
    with Served(name) as server:
        server.events("/v1/completions", ASKED)
        time.sleep(2)
        process = psutil.Process(server.process.pid)
        before, seconds = cpu(process), 30
        time.sleep(seconds)
        print(f"{100 * (cpu(process) - before) / seconds:.2f} % of a core")


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def soak(name: str, seconds: float = 60) -> None:
    """Clients that stream; a tenth of them leaves midway. Memory is read all the time."""
    done, left, failed, first_times, memory = [], [], [], [], []
    with Served(name, "--parallel", AT_A_TIME) as server:
        end = time.monotonic() + seconds

        def client(seed: int) -> None:
            chance, asked = random.Random(seed), ASKED | {"max_tokens": 32}
            while time.monotonic() < end:
                began = time.perf_counter()
                answer = server.open("/v1/completions", asked | {"prompt": f"{chance.random()} {PROMPT}"})
                try:
                    events = events_of(answer)
                    next(events)
                    next(events)
                    first_times.append(time.perf_counter() - began)
                    if chance.random() < 0.1:
                        answer.close()
                        left.append(1)
                        continue
                    list(events)
                    done.append(1)
                except (http.client.HTTPException, OSError, StopIteration, json.JSONDecodeError) as error:
                    failed.append(repr(error))

        threads = [threading.Thread(target=client, args=[seed]) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        process = psutil.Process(server.process.pid)
        while any(thread.is_alive() for thread in threads):
            memory.append((time.monotonic(), process.memory_info().rss))
            time.sleep(0.5)
        busy = sum(slot["is_processing"] for slot in server.get("/slots").body)
    settled = memory[len(memory) // 3 :]
    slope = statistics.linear_regression(*zip(*settled, strict=True)).slope * 60 / 2**20
    p50, p95 = (statistics.quantiles(first_times, n=20)[k] for k in (9, 18))
    print(f"{len(done)} answers, {len(left)} left midway, {len(failed)} failed {failed[:3]}; {busy} busy")
    print(f"time to first token: p50 {p50:.2f} s, p95 {p95:.2f} s; memory {slope:+.2f} MiB a minute")


if __name__ == "__main__":
    command, name, *rest = sys.argv[1:]
    {"overhead": overhead, "idle": idle, "soak": soak}[command](name, *map(float, rest))
