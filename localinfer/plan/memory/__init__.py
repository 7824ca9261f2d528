"""What a sequence remembers of its past: `memory.py` is what every kind of it can do, the others are its kinds."""
