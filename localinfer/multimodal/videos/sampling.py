"""Which frames of a video a model reads: numbers from 0 on, in order, as the model's own processor chooses them.

`fps` is the rate at which frames are sampled, `most` the largest number of them. At least one is sampled.
"""

import math

import numpy as np
from numpy.typing import NDArray

from localinfer.multimodal.videos.video_info import VideoInfo

FEWEST_OF_QWEN = 4
LONGEST_OF_GLM = 300  # seconds, after which the rate falls
SKIPPED_BY_SMOLVLM = 1  # seconds at the beginning and at the end of a long video


def qwen2_frames(info: VideoInfo, fps: float, most: int) -> list[int]:
    """Return an even number of frames, the first of each of as many equal parts (Qwen2-VL, Qwen2.5-VL)."""
    most = min(most, info.n_frames) // 2 * 2
    n = int(min(max(info.duration * fps, FEWEST_OF_QWEN), most)) // 2 * 2
    return beginnings(info.n_frames, n or 1)


def qwen3_frames(info: VideoInfo, fps: float, most: int) -> list[int]:
    """Return frames at equal distances, the first and the last among them (Qwen3-VL)."""
    n = min(max(int(info.n_frames / info.fps * fps), FEWEST_OF_QWEN), most, info.n_frames)
    return [int(number) for number in np.linspace(0, info.n_frames - 1, n).round()]


def glm4v_frames(info: VideoInfo, fps: float, most: int) -> list[int]:
    """Return the first frame at or after each instant, an even number of them, of which the last two may be the same
    (GLM-4.1V)."""
    last = info.n_frames - 1
    fps = min(fps, most / info.duration)
    if info.duration <= LONGEST_OF_GLM:
        seconds: NDArray[np.float64] = np.arange(max(math.floor(info.duration * fps), 1)) / fps
    else:
        seconds = np.linspace(0, info.duration, max(1, min(int(LONGEST_OF_GLM * fps), most)))
    frames = list(dict.fromkeys(min(last, math.ceil(second * info.fps)) for second in seconds.tolist()))
    return frames if len(frames) % 2 == 0 else [*frames, frames[-1]]


def glm5v_frames(info: VideoInfo, fps: float, most: int) -> list[int]:
    """Return as many frames as there are instants, the first one at or after each instant, or frames at equal distances
    if these are fewer or more; an even number of them, of which the last two may be the same (GLM-5-Next)."""
    wanted = max(1, min(int(info.duration * fps), most))
    frames = list(range(info.n_frames)) if info.n_frames < wanted else frames_at_instants(info, fps)
    if len(frames) != wanted:
        last = frames[-1] if info.n_frames >= wanted > len(frames) else info.n_frames - 1
        frames = np.linspace(0, last, wanted, dtype=int).tolist()
    frames = list(dict.fromkeys(frames))
    return frames if len(frames) % 2 == 0 else [*frames, frames[-1]]


def frames_at_instants(info: VideoInfo, fps: float) -> list[int]:
    """Return the first frame at or after each instant of a video, up to its last full second."""
    frames, instant, seconds_per_frame = list[int](), 0.0, 1 / info.fps
    for number in range(info.n_frames):
        if number * seconds_per_frame >= instant:
            frames.append(number)
            instant += 1 / fps
            if instant >= int(info.duration):
                break
    return frames


def smolvlm_frames(info: VideoInfo, fps: float, most: int) -> list[int]:
    """Return frames at equal distances, without the first and the last second of a long video (SmolVLM2)."""
    n = max(1, min(round(fps * info.duration), most))
    first, last = 0, info.n_frames - 1
    if info.duration - 2 * SKIPPED_BY_SMOLVLM > most * fps:
        first = int(SKIPPED_BY_SMOLVLM * info.fps)
        last = min(int(info.n_frames - SKIPPED_BY_SMOLVLM * info.fps), last)
    if first >= last:
        first, last = 0, info.n_frames - 1
    return [int(number) for number in np.unique(np.linspace(first, last, n, dtype=int))]


def internvl_frames(info: VideoInfo, fps: float, most: int) -> list[int]:
    """Return the frame in the middle of each of as many equal parts (InternVL)."""
    n = max(1, min(int(info.n_frames / info.fps * fps), most, info.n_frames))
    return beginnings(info.n_frames, n, shift=info.n_frames / n / 2)


def beginnings(n_frames: int, n: int, *, shift: float = 0) -> list[int]:
    """Return the first frame of each of `n` equal parts, or that which follows it by `shift`."""
    return [int(shift + number * n_frames / n) for number in range(n)]
