"""How the states of a text's tokens become one vector: GGUF's numbers for it."""

# By llama.cpp's number, which is that of the key <architecture>.pooling_type.
POOLINGS = ("none", "mean", "cls", "last", "rank")
