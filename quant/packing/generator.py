"""The generator of the values of IQ1_KT to IQ4_KT. This module does not import numba.

An index stands for the 8 weights of a group, or 4. They follow from the states of a multiplicative generator:

    state_k = MULTIPLIER**(k + 1) * (index + OFFSET) mod 2**32,  value_k = (sum of the bytes of state_k & MASK) - MIDDLE

so a value is the sum of four numbers of six bits, which is close to normal. Source: ik_llama.cpp's block structures;
QTIP (Tseng et al., 2024) introduced codes whose values are computed instead of stored.
"""

MULTIPLIER, OFFSET, MASK = 0xCBAC1FED, 4096, 0x3F3F3F3F
MIDDLE = 126  # the sum of bytes that stands for 0: the zero point of the codes
