"""The forward pass, written down: numbers of a model, ops over memory, and what becomes of the past. Runs nothing."""
