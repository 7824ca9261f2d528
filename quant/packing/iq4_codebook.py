"""The codebook of IQ4_NL and IQ4_XS. Its steps are small near zero, where most weights are."""

KVALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
ZERO_POINT = 128
CODES = [value + ZERO_POINT for value in KVALUES]
