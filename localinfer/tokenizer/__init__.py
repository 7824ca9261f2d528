"""Text to token ids and back: `from_gguf(f)` makes the tokenizer that a model file describes.

The way of the data, and where it happens:

    file's tokens, scores, types  ->  vocabulary.py, with marks.py
    text   ->  partition.py: cut at special tokens, with swallowing.py
           ->  segmenters/: a file for each kind of tokenizer; words are cut as pretokenizers.py says  ->  ids
    ids    ->  bytes  ->  stream.py: whole characters
"""

from .stream import StreamDecoder
from .tokenizer import Tokenizer, from_gguf

__all__ = ["StreamDecoder", "Tokenizer", "from_gguf"]
