"""The runtime: executes a model's compute graph over sequences of tokens, with a thread pool and a batch scheduler."""
