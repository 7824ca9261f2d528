"""What llama.cpp's chain of samplers leaves of random logits: writes data/sampling.json.

    python tests/make_sampling_fixtures.py        # needs llama-cpp-python

The logits are drawn again from the case's number by whoever reads the file: see `draw_case`.
"""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("data") / "sampling.json"
N_CASES = 48


def draw_case(number: int) -> tuple[NDArray[np.float32], list[int], dict[str, float]]:
    """Logits, recent tokens and options, always the same for a number."""
    random = np.random.Generator(np.random.PCG64(number))
    n = int(random.choice([4, 50, 300, 3000]))
    logits = (random.standard_normal(n) * random.choice([1, 3, 8])).astype(np.float32)
    recent = random.integers(0, n, 20).tolist()
    options = {
        "repeat_last_n": int(random.choice([0, 5, 64])),
        "repeat_penalty": float(random.choice([1.0, 1.1, 1.5])),
        "top_k": int(random.choice([0, 1, 5, 40])),
        "top_p": float(random.choice([0.0, 0.3, 0.9, 0.95, 1.0])),
        "min_p": float(random.choice([0.0, 0.01, 0.05, 0.5])),
        "temp": float(random.choice([0.2, 0.8, 1.5])),
    }
    return logits, recent, options


def survivors(number: int) -> dict[int, float]:
    """Token -> probability of what llama.cpp would draw from, the most probable first."""
    import llama_cpp as peer

    logits, recent, options = draw_case(number)
    candidates = (peer.llama_token_data * logits.size)()
    for id, logit in enumerate(logits):
        candidates[id].id, candidates[id].logit = id, float(logit)
    array = peer.llama_token_data_array(data=candidates, size=logits.size, selected=-1, sorted=False)
    chain = chain_of(peer, logits.size, options)
    for token in recent:
        peer.llama_sampler_accept(chain, token)
    peer.llama_sampler_apply(chain, ctypes.byref(array))
    left = [array.data[place] for place in range(array.size)]
    return {each.id: round(each.p, 6) for each in sorted(left, key=lambda each: -each.p)}


def chain_of(peer: Any, n_vocab: int, options: dict[str, float]) -> Any:
    """In the order of llama.cpp's programs; the draw at the end fills in the probabilities."""
    chain = peer.llama_sampler_chain_init(peer.llama_sampler_chain_default_params())
    penalties = options["repeat_last_n"], options["repeat_penalty"], 0.0, 0.0
    peer.llama_sampler_chain_add(chain, peer.llama_sampler_init_penalties(n_vocab, *penalties))
    peer.llama_sampler_chain_add(chain, peer.llama_sampler_init_top_k(options["top_k"]))
    peer.llama_sampler_chain_add(chain, peer.llama_sampler_init_top_p(options["top_p"], 1))
    peer.llama_sampler_chain_add(chain, peer.llama_sampler_init_min_p(options["min_p"], 1))
    peer.llama_sampler_chain_add(chain, peer.llama_sampler_init_temp(options["temp"]))
    peer.llama_sampler_chain_add(chain, peer.llama_sampler_init_dist(0))
    return chain


def kept(number: int) -> dict[str, Any]:
    """How many survive, and the first of them with their probabilities."""
    left = survivors(number)
    return {"survivors": len(left), "first": list(left.items())[:12]}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(kept(number)) for number in range(N_CASES))
    FILE.write_text(f"[\n{lines}\n]\n")
