"""Measurement commands: bench, profile, perplexity, compare and imatrix."""
