"""Stored tensor formats: tensors as they are stored in checkpoint files, and transformations of their values."""
