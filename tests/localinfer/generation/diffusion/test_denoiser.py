"""The sampling loop of diffusion language models unmasks the same tokens as a plain loop in numpy."""

from collections.abc import Iterator
from typing import Any

import checkpoints
import naive_diffusion
import pytest
import reference_models

import localinfer
from localinfer import Model
from localinfer.generation.diffusion.denoiser import DiffusionStep

PROMPT, N, MASK = list(b"Attention is"), 20, 257
EXACT: dict[str, Any] = {
    "threads": 1, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32", "top_p": 1.0, "min_p": 0.0,
    "ignore_eos": True, "seed": 7, "n_predict": N,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "blocks": {"temp": 0, "diffusion_block_length": 8, "diffusion_steps": 10},
    "timesteps": {"temp": 0, "diffusion_eps": 0.01, "diffusion_steps": 30},
    "entropy": {"temp": 0, "diffusion_algorithm": "entropy", "diffusion_steps": 6},
    "margin": {"temp": 0.7, "top_k": 9, "diffusion_algorithm": "2", "diffusion_steps": 6},
    "random": {"temp": 1.0, "top_k": 0, "diffusion_algorithm": "random", "diffusion_steps": 5},
    "origin": {"temp": 0.5, "top_k": 20, "diffusion_algorithm": "origin", "diffusion_steps": 7},
    "temperature": {"temp": 0.9, "top_k": 0, "diffusion_alg_temp": 0.3, "diffusion_steps": 6},
    "guidance": {"temp": 0, "diffusion_cfg_scale": 1.5, "diffusion_steps": 8},
    "noise": {"temp": 0.8, "top_k": 12, "diffusion_add_gumbel_noise": True, "diffusion_steps": 6},
}


@pytest.fixture(scope="module", params=["llada", "dream"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("diffusion")
    path = checkpoints.as_type(reference_models.checkpoint(request.param, folder), folder / "model.gguf", "F32")
    with localinfer.load(path, **EXACT) as loaded:
        yield loaded


def settings(model: Model, case: dict[str, Any]) -> naive_diffusion.Settings:
    shift = model.metadata["general.architecture"] == "dream"
    eps, block = case.get("diffusion_eps", 0.0), case.get("diffusion_block_length", 0)
    if not eps and not block:
        eps, block = (0.001, 0) if shift else (0.0, 32)
    name = case.get("diffusion_algorithm", "confidence")
    return naive_diffusion.Settings(
        mask_id=MASK, excluded=(256, MASK), shift=shift, steps=case["diffusion_steps"],
        algorithm={"2": "margin"}.get(name, name), alg_temp=case.get("diffusion_alg_temp", 0.0), eps=eps, block=block,
        cfg_scale=case.get("diffusion_cfg_scale", 0.0), gumbel=case.get("diffusion_add_gumbel_noise", False),
        temp=case["temp"], top_k=case.get("top_k", 0), seed=EXACT["seed"],
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_a_plain_loop(name: str, model: Model) -> None:
    case, steps = {"top_k": 0} | CASES[name], list[DiffusionStep]()
    model.on_diffusion_step = steps.append
    result = model.generate(PROMPT, **case)
    texts = naive_diffusion.generate(lambda ids: model.logits(ids).copy(), PROMPT, N, settings(model, case))
    unmasked = [[id if id != MASK else -1 for id in text[len(PROMPT) :]] for text in texts]
    assert [list(step.ids) for step in steps] == unmasked
    assert result.tokens == unmasked[-1]
    assert result.finish_reason == "length"
    assert result.stats.diffusion_steps == len(unmasked)
