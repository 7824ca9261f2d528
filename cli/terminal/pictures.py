"""Pictures in terminals that can draw them (kitty's protocol or sixel), with the package of the extra `pictures`."""

import sys
from contextlib import suppress

from cli.terminal import screen

ROWS = 10  # of a picture


def show_picture(content: bytes) -> None:
    """Draw the image that a file contains, which has been decoded before, if the terminal can and the package is
    installed.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty() and screen.is_redrawable()):
        return
    try:
        from textual_image.renderable import Image, SixelImage, TGPImage  # asks the terminal what it can
    except ImportError:
        return
    if Image not in (SixelImage, TGPImage):  # characters are too coarse
        return
    from PIL import Image as PillowImage
    from rich.console import Console

    from localinfer.multimodal.reading import read_image

    image = PillowImage.fromarray(read_image(content, "image").pixels)
    with suppress(Exception):  # of the package, such as for a terminal without a size; the chat goes on
        Console().print(Image(image, width="auto", height=ROWS))
