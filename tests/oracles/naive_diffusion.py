"""The sampling loop of diffusion language models, in plain numpy, for one text: from the code of LLaDA and Dream.

It draws the same random numbers as the program, in the same order. Samplers are temperature, top-k and top-p; a
temperature of 0 takes the most probable token.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Settings:
    mask_id: int
    excluded: tuple[int, ...]  # tokens that are never chosen
    shift: bool
    steps: int
    algorithm: str = "confidence"
    alg_temp: float = 0.0
    eps: float = 0.0
    block: int = 0
    cfg_scale: float = 0.0
    gumbel: bool = False
    temp: float = 0.0
    top_k: int = 0
    seed: int = 0


def generate(forward: Callable[[list[int]], Floats], prompt: list[int], n: int, s: Settings) -> list[list[int]]:
    """Return the text after each step that unmasks tokens. `forward` returns the logits of all positions of a text."""
    random, x, texts = np.random.Generator(np.random.PCG64(s.seed)), [*prompt, *[s.mask_id] * n], []
    starts = range(0, n, s.block or n)
    for number, start in enumerate(starts):
        end = min(start + (s.block or n), n)
        steps = max(1, s.steps // len(starts) + (number < s.steps % len(starts)))
        for step in range(steps):
            masked = [at for at in range(len(prompt) + start, len(prompt) + end) if x[at] == s.mask_id]
            count = number_of_tokens(len(masked), step, steps, s.eps)
            if count:
                x = unmasked(x, masked, count, len(prompt), forward, random, s)
                texts.append(list(x))
    return texts


def number_of_tokens(n_masked: int, step: int, steps: int, eps: float) -> int:
    if eps:
        times = np.linspace(1, eps, steps + 1)
        return n_masked if step == steps - 1 else int(n_masked * (1 - times[step + 1] / times[step]))
    return int(np.ceil(n_masked / (steps - step)))


def unmasked(
    x: list[int], masked: list[int], count: int, n_prompt: int, forward: Callable[[list[int]], Floats],
    random: np.random.Generator, s: Settings,
) -> list[int]:  # fmt: skip
    """Return a text with some more tokens."""
    x = list(x)
    if s.algorithm == "origin":
        masked = [at for at, u in zip(masked, random.random(len(masked)), strict=True) if u < count / len(masked)]
    if not masked:
        return x
    logits = forward(x).astype(np.float64)
    if s.cfg_scale:
        without = forward([s.mask_id] * n_prompt + x[n_prompt:]).astype(np.float64)
        logits = without + (s.cfg_scale + 1) * (logits - without)
    drawn, tokens, confidences = random.random(len(masked)), [], []
    for at, u in zip(masked, drawn, strict=True):
        row = logits[max(at - s.shift, 0)].copy()
        row[[*s.excluded]] = -np.inf
        if s.top_k:
            row[np.argsort(-row, kind="stable")[s.top_k :]] = -np.inf
        p = softmax(row / (s.temp or 1.0))
        if s.temp == 0:
            token = int(p.argmax())
        elif s.gumbel:
            allowed = np.argsort(-row, kind="stable")[: s.top_k] if s.top_k else np.arange(len(row))
            noisy = np.log(p[allowed]) - np.log(-np.log(random.random(len(allowed))))
            token = int(allowed[noisy.argmax()])
        else:
            order = np.argsort(-row, kind="stable")[: s.top_k] if s.top_k else np.arange(len(row))
            token = int(order[np.searchsorted(np.cumsum(p[order]), u, side="right")])
        tokens.append(token)
        confidences.append(confidence(p, token, s.algorithm))
    if s.algorithm == "origin":
        chosen = list(range(len(masked)))
    else:
        order = random.random(len(masked)) if s.algorithm == "random" else np.array(confidences)
        if s.alg_temp:
            order = order / s.alg_temp - np.log(-np.log(random.random(len(masked))))
        chosen = np.argsort(-order, kind="stable")[:count].tolist()
    for each in chosen:
        x[masked[each]] = tokens[each]
    return x


def softmax(x: Floats) -> Floats:
    e: Floats = np.exp(x - x.max())
    return e / e.sum()


def confidence(p: Floats, token: int, algorithm: str) -> float:
    if algorithm == "entropy":
        return float((p * np.log(p + 1e-10)).sum())
    if algorithm == "margin":
        first, second = np.sort(p)[::-1][:2]
        return float(first - second)
    return float(p[token])
