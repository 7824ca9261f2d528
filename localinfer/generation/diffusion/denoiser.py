"""The loop of a diffusion language model: evaluate the whole text, predict the masked tokens, unmask some of them.

The same seed gives the same tokens for any number of threads, since the logits are the same to the bit.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.generation.diffusion.schedule import (
    DEFAULT_BLOCK_LENGTH,
    DEFAULT_EPS,
    split_blocks,
    unmasked_count,
)
from localinfer.generation.diffusion.unmasking import (
    ALGORITHMS,
    Algorithm,
    Prediction,
    choose_positions,
    gumbel_noise,
    predict,
)
from localinfer.generation.pieces import Piece
from localinfer.generation.sampling import SamplerChain
from localinfer.generation.sampling.sampler_chain import is_greedy
from localinfer.gguf.reader import GGUF
from localinfer.options import Options
from localinfer.runtime.batch import Ids, Logits
from localinfer.runtime.sequence_engine import SequenceEngine

MASKED = -1  # in place of the id of a token that is masked
MASK_KEY, SHIFT_KEY = "tokenizer.ggml.mask_token_id", "diffusion.shift_logits"


class DiffusionModel(NamedTuple):
    """What a model file says about diffusion: the token that masks positions, and whether the logits at a position are
    those of the token after it."""

    mask_id: int
    shifts_logits: bool

    @classmethod
    def of(cls, f: GGUF, n_vocab: int) -> "DiffusionModel":
        """Read the metadata. Raises UnsupportedError for a file without mask token, LocalInferError for a wrong one."""
        mask_id = f.get(MASK_KEY, int, None)
        if mask_id is None:
            raise f.error(MASK_KEY, "is missing; a diffusion language model needs it", UnsupportedError)
        if not 0 <= mask_id < n_vocab:
            raise f.error(MASK_KEY, f"{mask_id} is not in the vocabulary of {n_vocab} tokens")
        return cls(mask_id, f.get(SHIFT_KEY, bool, True))


class DiffusionSettings(NamedTuple):
    """The options of a run, with the defaults of the model: timesteps if its logits are shifted, otherwise blocks."""

    steps: int
    algorithm: Algorithm
    alg_temp: float
    eps: float
    block_length: int
    cfg_scale: float
    adds_gumbel_noise: bool
    is_greedy: bool

    @classmethod
    def of(cls, options: Options, model: DiffusionModel) -> "DiffusionSettings":
        eps, block_length = options.diffusion_eps, options.diffusion_block_length
        if not eps and not block_length:
            eps, block_length = (DEFAULT_EPS, 0) if model.shifts_logits else (0.0, DEFAULT_BLOCK_LENGTH)
        name = options.diffusion_algorithm
        algorithm = ALGORITHMS[int(name)] if name.isdigit() else next(each for each in ALGORITHMS if each == name)
        return cls(
            options.diffusion_steps, algorithm, options.diffusion_alg_temp, eps, block_length,
            options.diffusion_cfg_scale, options.diffusion_add_gumbel_noise, is_greedy(options),
        )  # fmt: skip


class DiffusionStep(NamedTuple):
    """The answer after step number `number` of `total`, from 1 on: the ids of its tokens, or MASKED."""

    number: int
    total: int
    ids: Sequence[int]


class Denoiser:
    """Unmasks the tokens behind a prompt.

    `sampler` leaves the candidates of each position; the mask token must not be one. `piece_of` makes the piece of a
    token from the logits at its position, and `pieces` has those of the unmasked tokens.
    """

    def __init__(
        self, engine: SequenceEngine, model: DiffusionModel, settings: DiffusionSettings, sampler: SamplerChain,
        seed: int, piece_of: Callable[[Logits, int], Piece] = lambda _, id: Piece("", id),
    ) -> None:  # fmt: skip
        self.pieces: dict[int, Piece] = {}
        self._engine, self._model, self._settings = engine, model, settings
        self._sampler, self._piece_of = sampler, piece_of
        self._random = np.random.Generator(np.random.PCG64(seed))

    def steps(self, prompt: Sequence[int], length: int) -> Iterator[DiffusionStep]:
        """Unmask `length` tokens behind the prompt, and yield the answer after each step that unmasks some."""
        settings, n_prompt = self._settings, len(prompt)
        ids = np.array([*prompt, *[self._model.mask_id] * length], np.int32)
        masked = np.arange(len(ids)) >= n_prompt
        blocks = split_blocks(length, settings.block_length, settings.steps)
        n_before, total = 0, sum(block.steps for block in blocks)
        for block in blocks:
            for step in range(block.steps):
                positions = n_prompt + block.first + np.flatnonzero(masked[n_prompt:][block.first : block.end])
                count = unmasked_count(step, block.steps, len(positions), settings.eps)
                if not count:
                    continue
                for position, prediction in self._unmask(ids, positions, count, n_prompt):
                    ids[position], masked[position] = prediction.id, False
                answer = np.where(masked, MASKED, ids)[n_prompt:]
                yield DiffusionStep(n_before + step + 1, total, answer.tolist())
            n_before += block.steps

    def _unmask(
        self, ids: Ids, positions: NDArray[np.intp], count: int, n_prompt: int
    ) -> list[tuple[int, Prediction]]:
        """Return the positions to unmask, about `count` of the masked `positions`, and the tokens predicted there."""
        settings = self._settings
        if settings.algorithm == "origin":  # each position by itself, with the same probability
            positions = positions[self._random.random(len(positions)) < count / len(positions)]
        if not len(positions):
            return []
        predictions, pieces = [], []
        known = [id for id in ids.tolist() if id != self._model.mask_id]
        for logits, u in zip(self._logits(ids, positions, n_prompt), self._random.random(len(positions)), strict=True):
            candidates = self._sampler.candidates(logits, known)
            noise = None
            if settings.adds_gumbel_noise and not settings.is_greedy:
                noise = gumbel_noise(self._random, candidates.ids.size)
            prediction = predict(candidates, settings.algorithm, u, greedy=settings.is_greedy, noise=noise)
            predictions.append(prediction)
            pieces.append(self._piece_of(logits, prediction.id))
        chosen = self._choose(predictions, count)
        self.pieces |= {int(positions[each]) - n_prompt: pieces[each] for each in chosen}
        return [(int(positions[each]), predictions[each]) for each in chosen]

    def _choose(self, predictions: Sequence[Prediction], count: int) -> Sequence[int]:
        """Return the indices of the predictions that are unmasked."""
        settings = self._settings
        if settings.algorithm == "origin":
            return range(len(predictions))
        confidences = np.array([each.confidence for each in predictions])
        if settings.algorithm == "random":
            confidences = self._random.random(len(predictions))
        chosen: list[int] = choose_positions(confidences, count, settings.alg_temp, self._random).tolist()
        return chosen

    def _logits(self, ids: Ids, positions: NDArray[np.intp], n_prompt: int) -> Iterator[Logits]:
        """Yield the logits of the tokens at these positions, each valid until the next one.

        With classifier-free guidance (Nie et al., 2024), logits move away from those without the prompt.
        """
        rows = np.maximum(positions - self._model.shifts_logits, 0).astype(np.int32)
        scale, unconditional = self._settings.cfg_scale, np.empty((0, 0), np.float32)
        if scale:
            without = np.where(np.arange(len(ids)) < n_prompt, self._model.mask_id, ids)
            unconditional = np.concatenate([each.copy() for each in self._engine.bidirectional_logits(without, rows)])
        n_done = 0
        for batch in self._engine.bidirectional_logits(ids, rows):
            if scale:
                base = unconditional[n_done : n_done + len(batch)]
                batch = base + np.float32(scale + 1) * (batch - base)
                n_done += len(batch)
            yield from batch
