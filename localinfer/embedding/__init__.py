"""Texts become vectors: their tokens' states in an engine, pooled, and judged by a classifier where there is one."""
