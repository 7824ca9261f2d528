"""Tokenizer: text to token ids and back. `from_gguf(f)` builds the tokenizer that a model file describes.

Data flow:

    tokens, scores and types of the file  ->  vocabulary.py, with known_special_tokens.py
    text   ->  partition.py: split at special tokens, with whitespace_stripping.py
           ->  segmenters/: one module per tokenizer model; pretokenizers.py defines how words are split  ->  ids
    ids    ->  bytes  ->  stream.py: complete characters
"""

from .stream import StreamDecoder
from .tokenizer import Tokenizer, from_gguf

__all__ = ["StreamDecoder", "Tokenizer", "from_gguf"]
