"""Compute graphs: model metadata, ops over preallocated memory, and per-sequence caches. Executes nothing."""
