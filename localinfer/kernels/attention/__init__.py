"""The kernels of attention and of the KV cache."""
