"""Write data/sampling.json: the result of llama.cpp's samplers on random logits.

    python tests/making/make_sampling_fixtures.py        # needs llama-cpp-python

Readers regenerate the logits and options from the case's number: see `draw_case`.
"""

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parents[1] / "data" / "sampling.json"
N_CASES = 160
SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
Case = tuple[NDArray[np.float32], list[int], dict[str, Any]]


def draw_case(number: int) -> Case:
    """Return logits, recent tokens and options, determined by the case's number."""
    random = np.random.Generator(np.random.PCG64(number))
    n = int(random.choice([4, 50, 300, 3000]))
    logits = (random.standard_normal(n) * random.choice([1, 3, 8])).astype(np.float32)
    recent = random.integers(0, min(n, 6), 40).tolist()
    order = SAMPLERS if number % 2 else random.permutation(SAMPLERS).tolist()

    def one_of(default: float, *others: float) -> float:
        """Return the usual value in half of the cases."""
        return float(random.choice([default] * len(others) + [*others]))

    options: dict[str, Any] = {
        "repeat_last_n": int(one_of(64, 0, 5)), "repeat_penalty": one_of(1, 1.1, 1.5),
        "presence_penalty": one_of(0, 0.5, -0.3), "frequency_penalty": one_of(0, 0.2),
        "dry_multiplier": one_of(0, 0.8), "dry_base": one_of(1.75, 1.1, 1),
        "dry_allowed_length": int(one_of(2, 1, 4)), "dry_penalty_last_n": int(one_of(64, 0, 20)),
        "top_n_sigma": one_of(-1, 1, 2.5), "top_k": int(one_of(0, 1, 5, 40)), "typical_p": one_of(1, 0.3, 0.9),
        "top_p": one_of(1, 0, 0.3, 0.9, 0.95), "min_p": one_of(0, 0.01, 0.05, 0.5), "min_keep": int(one_of(0, 1, 3)),
        "xtc_probability": one_of(0, 1), "xtc_threshold": one_of(0.1, 0.05, 0.3),
        "temp": one_of(0.8, 0.2, 1, 1.5, 0), "dynatemp_range": one_of(0, 0.5), "dynatemp_exp": one_of(1, 2),
        "mirostat": int(one_of(0, 0, 0, 1, 2)), "mirostat_ent": one_of(5, 1, 2),
        "adaptive_target": one_of(-1, 0.1, 0.6), "adaptive_decay": one_of(0.9, 0.5),
        "samplers": ";".join([*order, *["adaptive_p"] * (random.random() < 0.2)]),
    }  # fmt: skip
    if options["typical_p"] < 1:  # which llama.cpp has no use for where a candidate is impossible
        options |= {"top_n_sigma": -1.0, "temp": options["temp"] or 1.0}
    return logits, recent, options


def probabilities(logits: Sequence[float], recent: Sequence[int], options: dict[str, Any]) -> dict[int, float]:
    """Return llama.cpp's probabilities by token, the most probable first."""
    import llama_cpp as peer

    candidates = (peer.llama_token_data * len(logits))()
    for id, logit in enumerate(logits):
        candidates[id].id, candidates[id].logit = id, float(logit)
    array = peer.llama_token_data_array(data=candidates, size=len(logits), selected=-1, sorted=False)
    chain = chain_of(peer, len(logits), options)
    for token in recent:
        peer.llama_sampler_accept(chain, token)
    peer.llama_sampler_apply(chain, ctypes.byref(array))
    remaining = [array.data[position] for position in range(array.size)]
    return {each.id: each.p for each in sorted(remaining, key=lambda each: -each.p)}


def chain_of(peer: Any, n_vocab: int, options: dict[str, Any], vocabulary: Any = None) -> Any:
    """Return the sampler chain of llama.cpp's programs; its last sampler computes the probabilities.

    With a `vocabulary`, the default sequence breakers of DRY are looked up in it; without one it has none.
    """
    o, chain = options, peer.llama_sampler_chain_init(peer.llama_sampler_chain_default_params())
    keep, names = o["min_keep"], o["samplers"].split(";")
    breakers = [b"\n", b":", b'"', b"*"] if vocabulary else []
    dry = o["dry_multiplier"], o["dry_base"], o["dry_allowed_length"], o["dry_penalty_last_n"]
    makers = {
        "penalties": lambda: peer.llama_sampler_init_penalties(
            n_vocab, o["repeat_last_n"], o["repeat_penalty"], o["frequency_penalty"], o["presence_penalty"]),
        "dry": lambda: peer.llama_sampler_init_dry(
            vocabulary, *dry, (ctypes.c_char_p * len(breakers))(*breakers), len(breakers)),
        "top_n_sigma": lambda: peer.llama_sampler_init_top_n_sigma(o["top_n_sigma"]),
        "top_k": lambda: peer.llama_sampler_init_top_k(o["top_k"]),
        "typ_p": lambda: peer.llama_sampler_init_typical(o["typical_p"], keep),
        "top_p": lambda: peer.llama_sampler_init_top_p(o["top_p"], keep),
        "min_p": lambda: peer.llama_sampler_init_min_p(o["min_p"], keep),
        "xtc": lambda: peer.llama_sampler_init_xtc(o["xtc_probability"], o["xtc_threshold"], keep, 0),
        "temperature": lambda: peer.llama_sampler_init_temp_ext(o["temp"], o["dynatemp_range"], o["dynatemp_exp"]),
    }  # fmt: skip
    tau, eta = o["mirostat_ent"], 0.1
    if o["mirostat"]:
        samplers = [peer.llama_sampler_init_temp(o["temp"])]
        samplers.append(
            peer.llama_sampler_init_mirostat(n_vocab, 0, tau, eta, 100)
            if o["mirostat"] == 1
            else peer.llama_sampler_init_mirostat_v2(0, tau, eta)
        )
    else:
        samplers = [makers[name]() for name in names if name in makers]
        samplers.append(
            peer.llama_sampler_init_adaptive_p(o["adaptive_target"], o["adaptive_decay"], 0)
            if "adaptive_p" in names
            else peer.llama_sampler_init_dist(0)
        )
    for sampler in samplers:
        peer.llama_sampler_chain_add(chain, sampler)
    return chain


def remaining_candidates(number: int) -> dict[str, Any]:
    """Return the number of candidates, and the first ones with their probabilities."""
    remaining = {id: round(p, 7) for id, p in probabilities(*draw_case(number)).items() if p > 0}
    return {"possible": len(remaining), "first": list(remaining.items())[:12]}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(remaining_candidates(number)) for number in range(N_CASES))
    FILE.write_text(f"[\n{lines}\n]\n")
