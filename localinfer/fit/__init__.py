"""Fit a model to this machine: measure the machine, and choose the types of tensors by time and KL divergence."""
