"""Quantization of models: the type of each tensor, the conversion, and reports on the resulting error."""
