"""Kernels as machine code for this CPU: the words that they are written in, how they are compiled, kept and loaded."""
