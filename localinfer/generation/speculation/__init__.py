"""Speculation: tokens are guessed, and the model looks at all guesses in one pass over its weights.

It costs little more than a pass for one token, as long as reading the weights takes longer than multiplying with them.
The text is the one that comes without guesses, to the last token (see `speculation.py`); only the time differs.

    speculation    the guesses of one run: asks whoever guesses, looks what becomes of it, counts
    lookup         guesses that what followed the same words before follows again
    draft          guesses by a smaller model
    head           guesses by a head of the model itself
    pace           how many guesses pay, by what they cost and how often they come true: both are measured
"""
