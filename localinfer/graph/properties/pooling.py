"""Pooling of token embeddings: the names of GGUF's pooling types."""

# The index is llama.cpp's number, which is the value of the key <architecture>.pooling_type.
POOLINGS = ("none", "mean", "cls", "last", "rank")
