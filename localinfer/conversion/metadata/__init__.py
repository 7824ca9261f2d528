"""Conversion of config.json: its hyperparameters -> GGUF's metadata."""
