"""Encoders: float32 weights to quantized blocks. Python classes, their kernels, and code shared by several formats."""
