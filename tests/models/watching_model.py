"""A tiny model that watches videos: a random Qwen2 with the projector of InternVL of tests/data."""

from pathlib import Path
from typing import Any

import projectors
from tiny import Field, tiny_qwen2

N_TOKENS = 9  # of a frame, without the text around it
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_watching_model(folder: Path, **changes: Any) -> Path:
    """Write the model and its projector into a folder. Return the path of the model."""
    projectors.write("internvl", folder)
    sizes = {"n_embd": 64, "n_ff": 128, "n_ctx": 2048, "tokenizer.chat_template": Field("STRING", TEMPLATE)}
    return tiny_qwen2(folder / "qwen2.gguf", **(sizes | changes))
