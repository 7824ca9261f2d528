"""The properties of a model: what its metadata and tensors specify. Each topic has a module."""
