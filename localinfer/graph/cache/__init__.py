"""The caches of a sequence: `sequence_cache.py` is the interface, the other modules are the kinds of caches."""
