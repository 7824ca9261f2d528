"""Small projector files (mmproj) without tensors of use: what tells that a model reads images or sounds."""

from pathlib import Path

import gguf
import numpy as np


def write_projector_header(path: Path, *, image: bool = True, audio: bool = False, kind: str = "gemma3") -> Path:
    """Write a GGUF file that announces encoders, that of images of a projector type, and has one tensor."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", image)
    writer.add_bool("clip.has_audio_encoder", audio)
    writer.add_string("clip.vision.projector_type", kind)
    writer.add_string("clip.audio.projector_type", "voxtral")
    writer.add_tensor("v.patch_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
