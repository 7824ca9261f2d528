"""Hooks: activations of a run that are recorded or changed."""
