"""Text to token ids and back: `from_gguf(f)` makes the tokenizer that a model file describes.

The way of the data, and where it happens:

    file's tokens, scores, types  ->  vocabulary.py
    text   ->  partition.py: cut at special tokens
           ->  byte_level.py (with pretokenizers.py) or sentence_piece.py  ->  ids
    ids    ->  bytes  ->  stream.py: whole characters
"""

from .stream import StreamDecoder
from .tokenizer import Tokenizer, from_gguf

__all__ = ["StreamDecoder", "Tokenizer", "from_gguf"]
