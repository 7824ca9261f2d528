"""Ollama's API, for editors and tools that speak to nothing else: answers are lines of JSON, times nanoseconds."""
