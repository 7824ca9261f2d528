"""Weights of projector files are generated when a file is read, except those that were not drawn."""

import lzma
from pathlib import Path

import generated_weights
import gguf
import projectors


def test_packed_files_keep_every_byte(tmp_path: Path) -> None:
    """Also those of a tensor of which a bit has changed, which cannot be generated any more."""
    path = projectors.write("mlp", tmp_path)
    tensors = {each.name: each for each in gguf.GGUFReader(path).tensors}
    content, changed = path.read_bytes(), bytearray(path.read_bytes())
    changed[tensors["mm.0.weight"].data_offset] ^= 1
    sizes = [len(generated_weights.pack(bytes(file))) for file in (content, changed)]
    assert generated_weights.unpack(generated_weights.pack(bytes(changed))) == changed
    stored = len(lzma.compress(tensors["mm.0.weight"].data.tobytes(), preset=9))
    assert sizes[0] + stored / 2 < sizes[1] < len(lzma.compress(content, preset=9)) / 2
