"""Sampling: from logits to one token id, with llama.cpp's sampler chain, and log-probabilities.

This package handles numbers only, neither texts nor models. `sampler_chain.py` lists the samplers, and `candidates.py`
has the data structure that they pass on. NaN logits count as impossible; logits without any possible token are an
error. Infinite logits are certain and share the probability evenly.
"""

from .candidates import Candidates
from .repetition import SequenceBreakers
from .sampler_chain import SamplerChain, resolve_seed

__all__ = ["Candidates", "SamplerChain", "SequenceBreakers", "resolve_seed"]
