"""The formats that can be computed with: a room each, named as ggml names the type, and one for those of floats."""
