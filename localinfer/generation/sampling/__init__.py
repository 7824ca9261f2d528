"""From logits to one token id: llama.cpp's chain of samplers, and what else can be told of a distribution.

Knows numbers only, neither texts nor models. `chain.py` says which links there are, `candidates.py` what they hand
on. A NaN counts as impossible; logits without any possible token are an error. Infinite logits are certain: they share
the whole probability evenly.
"""

from .candidates import Candidates
from .chain import Sampler, chosen_seed
from .repetition import Breakers

__all__ = ["Breakers", "Candidates", "Sampler", "chosen_seed"]
