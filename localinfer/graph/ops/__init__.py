"""The ops of a compute graph, the memory that they use and what they cost."""
