"""Structured output: JSON, JSON schemas, grammars, regular expressions and choices as constraints on the next token.

    spec = constraint_spec(options)                     # from the options, validated before anything runs
    constraint = Constraint(spec, Vocabulary(tokenizer, n_vocab))

The package uses `llguidance`, which it imports only when a constraint is requested.
"""

from .constraint import Constraint
from .constraint_spec import ConstraintSpec, constraint_spec
from .constraint_start import AfterMarker
from .vocabulary import Vocabulary

__all__ = ["AfterMarker", "Constraint", "ConstraintSpec", "Vocabulary", "constraint_spec"]
