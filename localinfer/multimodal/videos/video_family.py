"""What an encoder that was trained for videos defines: which frames it reads, how large, and the text around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localinfer.multimodal.media import Video
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.videos.frame_sizes import Size
from localinfer.multimodal.videos.video_info import VideoInfo
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

Sample = Callable[[VideoInfo, float, int], list[int]]
Sizes = Callable[[ImageParameters, int, int, int, int, int], list[Size]]
ArrangeVideo = Callable[[Video, Sequence[MediaEmbeddings]], list[str | MediaEmbeddings]]


@dataclass(frozen=True)
class VideoFamily:
    """How a video becomes input rows: see `sampling`, `frame_sizes` and `video_text`.

    `fps` and `most` are the rate and the largest number of frames unless the user sets them. An encoder input shows
    `frames` frames. `tokens` are the fewest and the most tokens that the pixels of a frame make, 0 for no limit;
    `fewest_pixels`, of all frames together, stands for the fewest tokens. `padded` frames have black pixels at the
    right and at the bottom up to the last of their sizes, instead of being resized to it.
    """

    sample: Sample
    sizes: Sizes
    arrange: ArrangeVideo
    fps: float
    most: int
    frames: int = 1
    tokens: tuple[int, int] = (0, 0)
    fewest_pixels: int = 0
    padded: bool = False
