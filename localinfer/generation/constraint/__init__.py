"""Answers of a given form: JSON by a schema, a grammar, a regular expression, one of some choices.

    form = form_of(options)                             # what was asked for, checked before anything runs
    constraint = Constraint(form, Vocabulary(tokenizer, n_vocab))

The work is done by `llguidance`, which is imported when a form is asked for, and not before.
"""

from .constraint import Constraint
from .form import Form, form_of
from .vocabulary import Vocabulary

__all__ = ["Constraint", "Form", "Vocabulary", "form_of"]
