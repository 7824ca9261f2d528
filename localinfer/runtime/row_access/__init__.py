"""The way in which decode kernels read rows, chosen by measuring."""
