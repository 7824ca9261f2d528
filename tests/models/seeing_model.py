"""A tiny model that sees: a random Gemma 3 with the projector of tests/data, and pictures for it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import projectors
from PIL import Image
from tiny import Field, tiny_gemma3

N_TOKENS = 16  # of an image
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def write_seeing_model(folder: Path, **changes: Any) -> Path:
    """Write the model and its projector into a folder. Return the path of the model."""
    projectors.write("gemma3", folder)
    sizes = {"n_embd": 64, "n_ff": 128, "n_ctx": 2048, "tokenizer.chat_template": Field("STRING", TEMPLATE)}
    return tiny_gemma3(folder / "gemma3.gguf", **(sizes | changes))


def picture(seed: int = 0, size: tuple[int, int] = (40, 30)) -> bytes:
    """Return a PNG file with random pixels of this width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
