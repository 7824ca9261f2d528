"""Continuous batching: requests of several sequences, the batches that they are evaluated in, and shared prefixes."""
