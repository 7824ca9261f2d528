"""Ollama's API. Streams are newline-delimited JSON, and times are in nanoseconds."""
