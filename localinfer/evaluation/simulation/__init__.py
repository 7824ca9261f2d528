"""Simulation of the executor with any number of threads, on cores of any speeds: what limits the scaling of a model."""
