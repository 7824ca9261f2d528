"""Write tests/data/videos: what transformers does with small videos.

    python tests/making/make_video_fixtures.py            # all families
    python tests/making/make_video_fixtures.py qwen2vl    # this one

Needs torch, torchvision and transformers. The encoders are those of `make_encoder_fixtures`, whose weights are the same
in every run. NAME.npz has

    sampled_N          the frames that the processor samples of video N of `video_cases.SAMPLED`
    sizes              the height and the width of the frames of each video of `video_cases.SIZES`
    levels             the pixels, 0 to 255, of frames that are resized
    rows               the output rows of a video whose frames have the size that the encoder reads
    text               the text around the rows, where each row is "#"
    positions          the positions (temporal, vertical, horizontal) of the rows of the video, if they have three
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import make_encoder_fixtures as encoders
import numpy as np
import torch
import transformers
import video_cases
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm5_next.processing_glm5_next import Glm5NextProcessor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor
from transformers.video_utils import VideoMetadata

TOKENS_PER_SECOND = 2


@dataclass(frozen=True, kw_only=True)
class Family:
    """A processor of videos with the parameters of the projector file, and what depends on the family beside it."""

    processor: Callable[..., Any]
    sampling: dict[str, Any]
    text: Callable[[Any, VideoMetadata, int], str]
    seconds: bool = False  # whether temporal positions are times


def qwen(kind: Any, patch: int, size: dict[str, int]) -> Callable[..., Any]:
    return lambda **changes: kind(
        patch_size=patch, image_mean=[0.5] * 3, image_std=[0.5] * 3, cap_pixels_per_frame=True, size=changes or size,
    )  # fmt: skip


def rows_of(count: Any) -> str:
    return "#" * int(count)


def qwen2_text(grid: Any, _: VideoMetadata, __: int) -> str:
    return f"<|vision_start|>{rows_of(grid.prod() // 4)}<|vision_end|>"


def qwen3_text(grid: Any, metadata: VideoMetadata, _: int) -> str:
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2), vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>", video_token="#",
        _calculate_timestamps=lambda *arguments: Qwen3VLProcessor._calculate_timestamps(None, *arguments),
    )  # fmt: skip
    return Qwen3VLProcessor.replace_video_token(processor, {"video_grid_thw": [grid], "video_metadata": [metadata]}, 0)


def glm_text(kind: Any) -> Callable[[Any, VideoMetadata, int], str]:
    """Return the text that a processor of GLM writes."""

    def write(grid: Any, metadata: VideoMetadata, _: int) -> str:
        processor = SimpleNamespace(video_processor=SimpleNamespace(merge_size=2), image_token="#")
        processor.replace_frame_token_id = lambda *given, **named: kind.replace_frame_token_id(
            processor, *given, **named
        )
        return kind.replace_video_token(processor, {"video_grid_thw": [grid], "video_metadata": [metadata]}, 0)

    return write


def smolvlm_text(_: Any, metadata: VideoMetadata, n_rows: int) -> str:
    processor = SimpleNamespace(
        image_seq_len=n_rows, image_token="#", fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
    )  # fmt: skip
    found = {"pixel_values": np.zeros((1, len(metadata.frames_indices))), "video_metadata": [metadata]}
    return SmolVLMProcessor.replace_video_token(processor, found, 0)


def internvl_text(_: Any, metadata: VideoMetadata, n_rows: int) -> str:
    processor = SimpleNamespace(
        image_seq_length=n_rows, image_token="#", start_image_token="<img>", end_image_token="</img>"
    )
    found = {"pixel_values_videos": [np.zeros(len(metadata.frames_indices))]}
    return InternVLProcessor.replace_video_token(processor, found, 0)


QWEN2 = qwen(transformers.Qwen2VLVideoProcessor, 4, {"shortest_edge": 128 * 64, "longest_edge": 768 * 64})
QWEN25 = qwen(transformers.Qwen2VLVideoProcessor, 14, {"shortest_edge": 128 * 784, "longest_edge": 768 * 784})
QWEN3 = qwen(transformers.Qwen3VLVideoProcessor, 4, {"shortest_edge": 4096, "longest_edge": 25_165_824})
FAMILIES = {
    "glm4v": Family(
        processor=lambda **changes: transformers.Glm4vVideoProcessor(
            patch_size=4, image_mean=[0.5] * 3, image_std=[0.5] * 3,
            size=changes or {"shortest_edge": 12_544, "longest_edge": 47_040_000},
        ), sampling={}, text=glm_text(Glm4vProcessor),
    ),
    "glm5v": Family(
        processor=lambda **changes: transformers.Glm5NextVideoProcessor(
            patch_size=4, image_mean=[0.5] * 3, image_std=[0.5] * 3, **changes
        ), sampling={"max_frames": "most"}, text=glm_text(Glm5NextProcessor),
    ),
    "idefics3": Family(
        processor=lambda **_: transformers.SmolVLMVideoProcessor(
            video_sampling={"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 60}},
            max_image_size={"longest_edge": 60},
        ), sampling={"num_frames": "most"}, text=smolvlm_text,
    ),
    "internvl": Family(
        processor=lambda **_: transformers.InternVLVideoProcessor(
            size={"height": 24, "width": 24}, image_mean=[0.5] * 3, image_std=[0.5] * 3
        ), sampling={}, text=internvl_text,
    ),
    "qwen2_5vl": Family(processor=QWEN25, sampling={"max_frames": "most"}, text=qwen2_text, seconds=True),
    "qwen2vl": Family(processor=QWEN2, sampling={"max_frames": "most"}, text=qwen2_text),
    "qwen3vl": Family(processor=QWEN3, sampling={}, text=qwen3_text),
}  # fmt: skip


def metadata_of(n_frames: int, fps: float, numbers: Any = None) -> VideoMetadata:
    return VideoMetadata(n_frames, fps, 8, 8, n_frames / fps, "pyav", numbers)


def sampled(family: Family, case: video_cases.Sampled) -> Any:
    """Return the frames that a processor samples."""
    processor = family.processor()
    metadata = metadata_of(case.n_frames, case.source_fps)
    if hasattr(processor, "max_frames"):
        processor.max_frames = case.most
    given = {key: case.most for key, value in family.sampling.items() if value == "most"}
    return np.array([int(number) for number in processor.sample_frames(metadata=metadata, fps=case.fps, **given)])


def processed(processor: Any, frames: Any) -> Any:
    """Return what a processor makes of frames."""
    return processor(
        [torch.tensor(frames).permute(0, 3, 1, 2)], do_sample_frames=False, return_tensors="pt", do_resize=True
    )


def levels_of(found: Any) -> Any:
    """Return the pixels 0 to 255 of processed frames, in the processor's own order."""
    values = found["pixel_values"] if "pixel_values" in found else found["pixel_values_videos"]
    return np.rint((values.numpy() * 0.5 + 0.5) * 255).astype(np.uint8)


def rows_of_video(name: str, model: Any, found: Any) -> tuple[Any, Any]:
    """Return the output rows of all frames, and the temporal grid if there is one."""
    if "video_grid_thw" not in found:
        values = found["pixel_values"] if "pixel_values" in found else found["pixel_values_videos"]
        frames = values.reshape(-1, *values.shape[-3:])
        spec = encoders.SPECS[name]
        return torch.cat([spec.encode(model, each[None], spec.grids[0]) for each in frames]), None
    features = model.model.get_video_features(found["pixel_values_videos"], found["video_grid_thw"])
    deepstack = [rows[0] if isinstance(rows, tuple) else rows for rows in getattr(features, "deepstack_features", [])]
    return torch.cat([torch.cat(tuple(features.pooler_output)), *deepstack], 1), found["video_grid_thw"][0]


def make(name: str) -> None:
    family, case = FAMILIES[name], video_cases.encoded(name)
    arrays: dict[str, Any] = {
        f"sampled_{number}": sampled(family, each) for number, each in enumerate(video_cases.sampled_by(name))
    }
    processor = family.processor()
    sizes = []
    for n, height, width in video_cases.SIZES:
        resized = processed(processor, np.zeros((n, height, width, 3), np.uint8))
        if "video_grid_thw" in resized:
            sizes.append((resized["video_grid_thw"][0, 1:] * processor.patch_size).tolist())
        else:
            sizes.append(levels_of(resized).shape[-2:])
    resizing = family.processor(**(case.limits if name in video_cases.LARGE else {}))
    resized = processed(resizing, video_cases.resized(name))
    arrays |= {"sizes": np.array(sizes), "levels": levels_of(resized)}
    torch.manual_seed(20)
    model = encoders.SPECS[name].model().eval().float()
    model.config._attn_implementation = "eager"
    model.set_attn_implementation("eager")
    encoders.random_weights(model)
    found = processed(family.processor(**case.limits), video_cases.frames(*case.shape))
    with torch.no_grad():
        rows, grid = rows_of_video(name, model, found)
    metadata = metadata_of(case.n_frames, case.source_fps, list(case.numbers))
    arrays |= {"rows": rows.numpy(), "text": family.text(grid, metadata, len(rows) // len(case.numbers))}
    if grid is not None and name in ("qwen2vl", "qwen2_5vl"):
        interval = TOKENS_PER_SECOND * 2 / metadata.sampled_fps if family.seconds else 1.0
        arrays["positions"] = Qwen2_5_VLModel.get_vision_position_ids(None, 0, grid, 1, 2, interval).numpy().T
    video_cases.DATA.mkdir(exist_ok=True)
    np.savez_compressed(video_cases.DATA / f"{name}.npz", **arrays)
    print(f"{name}: {(video_cases.DATA / f'{name}.npz').stat().st_size:,} bytes, {arrays['text'][:90]!r}")


for each in sys.argv[1:] or FAMILIES:
    make(each)
