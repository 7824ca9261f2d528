"""Measures the server: overhead compared to the engine alone, CPU time when idle, and a soak test.

python tests/benchmarks/serving.py overhead MODEL     # one streaming client; interleaved with the engine alone
python tests/benchmarks/serving.py idle MODEL         # CPU time in 30 seconds without requests
python tests/benchmarks/serving.py soak MODEL [SECONDS]
"""

import contextlib
import http.client
import json
import random
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from server_process import ServerProcess, parse_events  # noqa: E402

from localinfer import load  # noqa: E402
from localinfer.model import Model  # noqa: E402

PROMPT = "Once upon a time"
TOKENS, ROUNDS = 64, 40
CLIENTS, AT_A_TIME, AGAIN = 32, 8, 20
REQUEST = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}


def overhead(name: str) -> None:
    """Measure the seconds per token from the first to the last token of the same response.

    The engine alone and the server run interleaved. The client only reads; events are parsed afterwards. Speculative
    decoding is off, because its draft length depends on measured times.
    """
    ratios, means = [], dict[str, list[float]](alone=[], served=[])
    with load(name, ubatch_size=128, parallel=4) as model, ServerProcess(name) as server:
        takers = {"alone": lambda: generate_directly(model), "served": lambda: generate_over_http(server)}
        for number in range(ROUNDS + 1):
            actual = {kind: takers[kind]() for kind in sorted(takers, reverse=bool(number % 2))}
            assert actual["alone"][0] == actual["served"][0]
            if number:  # the first round warms up
                for kind, (_, times) in actual.items():
                    means[kind].append((times[-1] - times[0]) / (len(times) - 1))
                ratios.append(means["served"][-1] / means["alone"][-1])
    alone, served = (1000 * np.median(means[kind]) for kind in ("alone", "served"))
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    print(f"a token: {alone:.3f} ms alone, {served:.3f} ms served, ratio {served / alone:.3f}")
    print(f"ratio of {ROUNDS} interleaved responses: median {middle:.3f}, quartiles {low:.3f} and {high:.3f}")


def generate_directly(model: Model) -> tuple[str, list[float]]:
    """Generate a text with the Python API. Returns the text and the arrival times of its tokens."""
    texts, times = [], []
    for piece in model.stream(PROMPT, n_predict=TOKENS, temp=0.0, ignore_eos=True, spec_type="none"):
        times.append(time.perf_counter())
        texts.append(piece.text)
    return "".join(texts), times


def generate_over_http(server: ServerProcess) -> tuple[str, list[float]]:
    """Generate a text over HTTP. Returns the text and the arrival times of its tokens."""
    body = json.dumps(REQUEST | {"speculative.type": "none"}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    read, times = b"", []
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + body)
        while came := client.recv(1 << 16):
            times += [time.perf_counter()] * came.count(b"data: {")
            read += came
    events = [line.removeprefix(b"data: ") for line in read.splitlines() if line.startswith(b"data: {")]
    texts = [json.loads(event)["choices"][0]["text"] for event in events]
    return "".join(texts), times[1:-1]  # the first event has no token, the last one has the finish reason


def idle(name: str) -> None:
    with ServerProcess(name) as server:
        server.events("/v1/completions", REQUEST)
        time.sleep(2)
        process = psutil.Process(server.process.pid)
        before, seconds = cpu_seconds(process), 30
        time.sleep(seconds)
        print(f"{100 * (cpu_seconds(process) - before) / seconds:.2f} % of a core")


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def soak(name: str, seconds: float = 300) -> None:
    """Run concurrent streaming clients, of which a tenth disconnects during the response, and observe the memory.

    Afterwards some requests are repeated alone; their responses must equal those under load.
    """
    answers, remaining, failed, first_times, memory = dict[str, str](), [], [], [], []
    with ServerProcess(name, "--parallel", AT_A_TIME, "--ctx-size", "1024") as server:
        end = time.monotonic() + seconds

        def client(seed: int) -> None:
            chance = random.Random(seed)
            while time.monotonic() < end:
                prompt = f"{chance.random()} {PROMPT}"
                try:
                    took, text = stream(server, prompt, disconnects=chance.random() < 0.1)
                    first_times.append(took)
                    if text is None:
                        remaining.append(prompt)
                    else:
                        answers[prompt] = text
                except (http.client.HTTPException, OSError, StopIteration, json.JSONDecodeError) as error:
                    failed.append(repr(error))

        threads = [threading.Thread(target=client, args=[seed]) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        process = psutil.Process(server.process.pid)
        while time.monotonic() < end:
            memory.append((time.monotonic(), process.memory_info().rss))
            time.sleep(0.5)
        for thread in threads:
            thread.join()
        busy = sum(slot["is_processing"] for slot in server.get("/slots").body)
        again = random.Random(0).sample(sorted(answers), min(AGAIN, len(answers)))
        others = [prompt for prompt in again if stream(server, prompt, disconnects=False)[1] != answers[prompt]]
    settled = memory[len(memory) // 3 :]
    slope = statistics.linear_regression(*zip(*settled, strict=True)).slope * 60 / 2**20
    p50, p95 = (statistics.quantiles(first_times, n=20)[k] for k in (9, 18))
    print(f"{len(answers)} answers, {len(remaining)} left midway, {len(failed)} failed {failed[:3]}; {busy} busy")
    print(f"{len(again)} repeated alone: {len(others)} answered otherwise {others[:3]}")
    print(f"time to first token: p50 {p50:.2f} s, p95 {p95:.2f} s; memory {slope:+.2f} MiB a minute")


def stream(server: ServerProcess, prompt: str, *, disconnects: bool) -> tuple[float, str | None]:
    """Return the seconds until the first token, and the text; None if the client disconnects after the first token."""
    start = time.perf_counter()
    with contextlib.closing(server.open("/v1/completions", REQUEST | {"prompt": prompt, "max_tokens": 32})) as answer:
        events = parse_events(answer)
        texts = [next(events)["choices"][0]["text"], next(events)["choices"][0]["text"]]  # the first event has no token
        took = time.perf_counter() - start
        if disconnects:
            return took, None
        return took, "".join([*texts, *(event["choices"][0]["text"] for event in events)])


if __name__ == "__main__":
    command, name, *parameters = sys.argv[1:]
    {"overhead": overhead, "idle": idle, "soak": soak}[command](name, *map(float, parameters))
