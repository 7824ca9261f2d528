"""Experts of a model that is larger than memory: read from the storage when a router chooses them, and cached.

`plan` divides the memory, `slots` is the memory of the cached experts, and `cache` decides which experts are in it.
"""
