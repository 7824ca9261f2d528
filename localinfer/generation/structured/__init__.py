"""Structured output: JSON, JSON schemas, grammars, regular expressions and choices as constraints on the next token.

    source = constraint_source(options)                 # from the options
    constraint = Constraint(source, Vocabulary(tokenizer, n_vocab))     # compiled in a worker process

`worker.py` and what it imports run in a child process, with the package `llguidance`. The parent imports neither.
This package imports nothing by itself, so that a worker starts without numpy.
"""
