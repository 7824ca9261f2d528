"""Text generation: the decode loop with samplers, speculative decoding and constraints, and the
pieces of text that it yields."""
