"""Floats into blocks: the faces for Python, the kernels, and what encoders of several formats share."""
