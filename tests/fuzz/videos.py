"""Fuzzing of videos: mutants are decoded in this process, which is limited as the child that decodes videos is."""

from collections.abc import Sequence
from random import Random

import numpy as np
from fuzz.files import Target, change_numbers
from fuzz.media import change_big_endian
from fuzz.mutations import change_bytes
from made_videos import CODECS, make_video

from localinfer.errors import LocalInferError
from localinfer.multimodal.content_type import video_container
from localinfer.multimodal.videos import video_decoding

FUZZED_PIXELS = 1 << 18  # instead of the real limit, so that "much memory" is noticed


class VideoFile(Target):
    mutations = (change_bytes, change_numbers, change_big_endian)

    def make(self) -> Sequence[bytes]:
        return [
            make_video(12, 6, (48, 64), container, codec, pixel_format) for container, codec, pixel_format in CODECS
        ]

    def run(self, content: bytes, choose: Random) -> None:
        video_decoding.MAX_PIXELS = FUZZED_PIXELS
        container = video_container(content)
        if not container:
            raise LocalInferError("not a video")
        reader = video_decoding.VideoReader(content, container, "mutant")
        info = reader.info
        assert 0 < info.duration <= video_decoding.MAX_SECONDS
        numbers = sorted(choose.choices(range(min(info.n_frames, 1000)), k=5))
        frames = list(reader.frames(numbers))
        assert len(frames) == len(numbers)
        assert all(each.shape == (info.height, info.width, 3) and each.dtype == np.uint8 for each in frames)
