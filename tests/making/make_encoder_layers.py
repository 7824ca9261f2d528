"""Write tests/data/encoder_layers.npz: the residual stream after each layer of the encoders of images and sounds, as
transformers computes it for the first reference input of each.

    python tests/making/make_encoder_layers.py               # of all encoders
    python tests/making/make_encoder_layers.py gemma3 glm4v  # of these; the others remain

Needs what `make_encoder_fixtures.py` needs, without the converter: the models are those of the fixtures, whose weights
do not depend on the machine. `names` are NAME/LAYER, for example gemma3/v.blk.0; `values` have the first COLUMNS
values of the first row of each, one in the middle and the last one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import make_encoder_fixtures as images
import make_sound_projector_fixtures as sounds
import numpy as np
import torch

DATA = Path(__file__).parents[1] / "data" / "encoder_layers.npz"
COLUMNS = 12


@contextmanager
def recorded(model: torch.nn.Module) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Record what the layers of each list of modules return in the with block, by the name of the list."""
    found: dict[str, list[torch.Tensor]] = {}
    hooks = []
    for name, modules in model.named_modules():
        for module in modules if isinstance(modules, torch.nn.ModuleList) else ():

            def keep(_module: Any, _inputs: Any, output: Any, name: str = name) -> None:
                found.setdefault(name, []).append(output[0] if isinstance(output, tuple) else output)

            hooks.append(module.register_forward_hook(keep))
    yield found
    for hook in hooks:
        hook.remove()


def image_layers(name: str) -> dict[str, list[torch.Tensor]]:
    """Return the outputs of the layers for the first image of the fixture."""
    spec = images.SPECS[name]
    torch.manual_seed(images.SEED)
    model = spec.model().eval().float()
    model.config._attn_implementation = "eager"
    model.set_attn_implementation("eager")
    images.random_weights(model)
    generator, grid = np.random.default_rng(images.SEED), spec.grids[0]
    with torch.no_grad(), recorded(model) as found:
        spec.encode(model, images.pixels_of(spec, grid, generator), grid)
    order = squares(grid) if name.startswith("hunyuanvl") else slice(None)
    return {prefix_of(name, "v."): [flat(each)[order] for each in layers] for name, layers in found.items()}


def sound_layers(name: str) -> dict[str, list[torch.Tensor]]:
    """Return the outputs of the layers for the first sound of the fixture."""
    spec = sounds.SPECS[name]
    torch.manual_seed(sounds.SEED)
    model = spec.model().eval().float()
    model.set_attn_implementation("eager")
    sounds.random_weights(model)
    levels = sounds.levels_of(spec, spec.frames[0], np.random.default_rng(sounds.SEED))
    with torch.no_grad(), recorded(model) as found:
        spec.encode(model, torch.tensor(levels.T / 2).float()[None], spec.frames[0])
    return {prefix_of(name, "a."): [flat(each) for each in layers] for name, layers in found.items()}


def prefix_of(name: str, encoder: str) -> str:
    """Return the prefix of the layers in projector files, given the name of the list of modules; "" for other lists
    than those of layers."""
    if any(word in name for word in ("subsampling", "qformer", "deepstack", "merger.mlp")):
        return ""
    return f"{encoder}sam.blk." if "sam_" in name else f"{encoder}blk."


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def squares(grid: tuple[int, int]) -> torch.Tensor:
    """Return the numbers of the patches in the order of squares of 2 x 2, in which the encoder has them."""
    numbers = torch.arange(grid[0] * grid[1]).reshape(grid[0] // 2, 2, grid[1] // 2, 2)
    return numbers.permute(0, 2, 1, 3).reshape(-1)


if __name__ == "__main__":
    wanted, stored = sys.argv[1:], np.load(DATA)
    arrays = dict(zip(stored["names"].tolist(), stored["values"], strict=True)) if wanted else {}
    for specs, layers_of in ((images.SPECS, image_layers), (sounds.SPECS, sound_layers)):
        for name in (each for each in specs if not wanted or each in wanted):
            for prefix, layers in layers_of(name).items():
                for number, values in enumerate(layers if prefix else ()):
                    rows = [0, len(values) // 2, len(values) - 1]
                    arrays[f"{name}/{prefix}{number}"] = values[rows, :COLUMNS].numpy()
    np.savez_compressed(DATA, names=np.array(list(arrays)), values=np.stack(list(arrays.values())))
    print(f"{len(arrays)} layers, {DATA.stat().st_size:,} bytes")
