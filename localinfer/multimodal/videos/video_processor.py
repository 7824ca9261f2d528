"""From a video to what an encoder reads: the frames that are sampled, their size, and their patches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localinfer.multimodal.media import Video
from localinfer.multimodal.preprocessing.encoder_input import EncoderInput
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.pixel_operations import Pixels, pad, resize, to_patches
from localinfer.multimodal.videos.frame_sizes import Size
from localinfer.multimodal.videos.video_family import VideoFamily
from localinfer.multimodal.videos.video_info import VideoInfo
from localinfer.options import Options


@dataclass(frozen=True)
class VideoProcessor:
    """Makes encoder inputs of a video, as a family does it, within the limits that the user sets."""

    family: VideoFamily
    parameters: ImageParameters
    options: Options

    def frames(self, info: VideoInfo, most: int) -> list[int]:
        """Return the numbers of the frames to read, at most `most`."""
        return self.family.sample(info, self.options.video_fps or self.family.fps, most)

    @property
    def most(self) -> int:
        """The largest number of frames, without regard to the context."""
        return self.options.video_max_frames or self.family.most

    def sizes(self, height: int, width: int, n: int) -> list[Size]:
        """Return the sizes to which each of `n` frames is resized, one after the other. Raises LocalInferError."""
        token, options = self.parameters.token_size**2, self.options
        fewest, most = (count * token for count in self.family.tokens)
        most = options.image_max_tokens * token or most
        fewest = options.image_min_tokens * token or self.family.fewest_pixels or fewest
        return self.family.sizes(self.parameters, height, width, n, min(fewest, most or fewest), most)

    def grid(self, height: int, width: int, n: int) -> tuple[int, int]:
        """Return the rows and columns of patches of `n` frames of this size."""
        rows, columns = self.sizes(height, width, n)[-1]
        return rows // self.parameters.patch_size, columns // self.parameters.patch_size

    def n_inputs(self, n: int) -> int:
        """Return the number of encoder inputs that show `n` frames."""
        return -(-n // self.family.frames)

    def fit(self, frame: Pixels, n: int) -> Pixels:
        """Return one of `n` frames in the size that the encoder reads; a frame that has it stays as it is."""
        sizes = self.sizes(frame.shape[0], frame.shape[1], n)
        for height, width in sizes[:-1] if self.family.padded else sizes:
            frame = resize(frame, height, width, self.parameters.filter)
        return pad(frame, *sizes[-1]) if self.family.padded else frame

    def __call__(self, video: Video) -> list[EncoderInput]:
        """Return the encoder inputs, each with the patches of its frames side by side; the last frame is repeated if
        there are too few."""
        n, step = len(video.frames), self.family.frames
        return [
            self._input([video.frames[min(first + index, n - 1)] for index in range(step)], n, first)
            for first in range(0, n, step)
        ]

    def _input(self, frames: Sequence[Pixels], n: int, first: int) -> EncoderInput:
        shown = [to_patches(self.fit(frame, n), self.parameters, f"frame {first + 1}") for frame in frames]
        return EncoderInput(np.concatenate([each.patches for each in shown], axis=1), shown[0].grid, shown[0].name)
