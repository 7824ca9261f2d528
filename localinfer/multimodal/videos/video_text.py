"""The text around the rows of a video, with special tokens as text, as the processor of each model writes it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

import numpy as np

from localinfer.multimodal.media import Video, digest_of
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

Rows = Sequence[MediaEmbeddings]  # of each encoder input
Part: TypeAlias = str | MediaEmbeddings
BEGIN, END = "<|vision_start|>", "<|vision_end|>"
TOKENS_PER_SECOND = 2  # temporal positions of Qwen2.5-VL
ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def qwen2_text(_: Video, rows: Rows) -> list[Part]:
    """Return all pairs of frames as one span, whose temporal positions are the numbers of the pairs."""
    return [BEGIN, in_time(rows, 1), END]


def qwen25_text(video: Video, rows: Rows) -> list[Part]:
    """Return all pairs of frames as one span, whose temporal positions are their times."""
    seconds_per_pair = 2 * video.duration / len(video.times)
    return [BEGIN, in_time(rows, TOKENS_PER_SECOND * seconds_per_pair), END]


def qwen3_text(video: Video, rows: Rows) -> list[Part]:
    """Return each pair of frames behind the mean of their times."""
    parts: list[Part] = []
    for number, each in enumerate(rows):
        times = video.times[2 * number : 2 * number + 2]
        parts += [f"<{(times[0] + times[-1]) / 2:.1f} seconds>{BEGIN}", each, END]
    return parts


def glm4v_text(video: Video, rows: Rows) -> list[Part]:
    """Return each pair of frames, and behind it the second of the first one."""
    return glm_text(video, rows, lambda time: f"{int(time)}")


def glm5v_text(video: Video, rows: Rows) -> list[Part]:
    """Return each pair of frames, and behind it the time of the first one."""
    return glm_text(video, rows, lambda time: f"{time:.1f} seconds")


def glm_text(video: Video, rows: Rows, written: Callable[[float], str]) -> list[Part]:
    """Return each pair of frames, and behind it the time of the first one as it is `written`."""
    parts: list[Part] = []
    for number, each in enumerate(rows):
        parts += ["<|begin_of_image|>", each, f"<|end_of_image|>{written(video.times[2 * number])}"]
    return parts


def smolvlm_text(video: Video, rows: Rows) -> list[Part]:
    """Return each frame behind its time, and an introduction."""
    duration, count = timedelta(seconds=int(video.duration)), number_in_words(len(rows))
    what = f"You are provided the following series of {count} frames from a {duration} [H:MM:SS] video.\n"
    parts: list[Part] = [what]
    for time, each in zip(video.times, rows, strict=True):
        minutes, seconds = divmod(int(time), 60)
        parts += [f"\nFrame from {minutes:02d}:{seconds:02d}:<fake_token_around_image><global-img>", each,
                  "<fake_token_around_image>"]  # fmt: skip
    return [*parts, "\n\n"]


def internvl_text(_: Video, rows: Rows) -> list[Part]:
    """Return each frame behind its number."""
    parts: list[Part] = []
    for number, each in enumerate(rows):
        parts += [f"{chr(10) if number else ''}Frame{number + 1}: <img>", each, "</img>"]
    return parts


def in_time(rows: Rows, step: float) -> MediaEmbeddings:
    """Return the rows of all encoder inputs as one span: the temporal position of each input is `step` times its
    number. The text that follows begins after the largest position of any coordinate."""
    times = (np.arange(len(rows), dtype=np.float32) * np.float32(step)).astype(np.int32)
    shifted = []
    for each, time in zip(rows, times.tolist(), strict=True):
        assert each.coordinates is not None
        shifted.append(each.coordinates + np.array([time, 0, 0], np.int32))
    coordinates = np.concatenate(shifted)
    digests = b"".join(each.digest for each in rows) + digest_of(coordinates)
    digest, n_positions = digest_of(np.frombuffer(digests, np.uint8)), int(coordinates.max()) + 1
    return MediaEmbeddings(digest, np.concatenate([each.rows for each in rows]), n_positions, coordinates)


def number_in_words(n: int) -> str:
    """Return a number below a million in English words."""
    if n >= 1000:
        return f"{number_in_words(n // 1000)} thousand" + (_rest(n % 1000, ", ") if n % 1000 else "")
    if n >= 100:
        return f"{ONES[n // 100]} hundred" + (_rest(n % 100, " and ") if n % 100 else "")
    return ONES[n] if n < len(ONES) else TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def _rest(n: int, between: str) -> str:
    return (" and " if n < 100 else between) + number_in_words(n)
