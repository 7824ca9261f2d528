"""The weights of the squared errors that every search for scales minimizes.

The importance m_j of a column is the mean square of its inputs. An error e_j in the weight adds m_j e_j^2 to the power
of the error in the output, provided that errors are uncorrelated. Rounding errors are. But a scale that clips the
largest weights reduces all of them alike, and outputs are large because large weights meet inputs of matching sign. So
where the columns of a group are equally important, the errors of large weights get more weight, by the factor
sqrt(1 + x_j^2 / mean(x^2)). ggml uses this factor; it improved the files of every model if the importance was unknown.
Where a few columns are much more important than the others (massive activations; Sun et al., 2024), encoding these
columns well is worth a larger error in the large weights elsewhere, and the factor does harm. The effective fraction of
important columns interpolates between the two cases:

    fraction = (sum m)^2 / (n sum m^2),    w_j = m_j (1 + fraction (sqrt(1 + x_j^2 / mean(x^2)) - 1))

The fraction is 1 if all columns of a group are equally important or the importance is unknown, and 1 / n if only one
column matters. Sums run over a group, the mean over all groups of a superblock.

Superblocks with mins use half of the fraction: their codes cover the range from the smallest to the largest weight, so
less is clipped. Without importance this made Q4_K and Q5_K files of SmolLM2 3 % better and of Gemma 3 no worse; with
importance it made no difference. Q3_K has no mins, and there a smaller factor made SmolLM2 4 % worse.

The search does not model the uncertainty of the importance. The inputs of attention and of gates are close to normal:
for N tokens the mean square has a relative error of sqrt(2 / N), far below the differences between columns, and other
kinds of text preserve their order. Shrinking importances towards their mean, additively or as powers, made files of
SmolLM2 5 to 11 % worse and did not improve those of Gemma 3 and Qwen2.5-Coder. This includes ffn_down, whose
importances are the least certain.

The blocks of Q4_0, Q4_1, Q5_0 and Q5_1 that are bit-identical to ggml's do not use these weights: there the outermost
weights determine the scale. Searching the scales with the factor reduced the output error of SmolLM2 by 6, 21, 8 and
18 %, and the KL divergence of its Q4_0 and Q4_1 files by 8 and 16 %.

Without importance the factor is a compromise over three models and not optimal for each: half of its excess over 1 in
Q4_K and Q5_K reduced the KL divergence of SmolLM2's Q3_K_M by 3 %, did not change Gemma 3's Q4_K_M, and added 8 % to
Qwen2.5-Coder's.
"""

from typing import Any

from quant.encoders.vector_math import broadcast, make_reductions, safe_reciprocals
from quant.jit.vectors import f32x16, fma, inline, load, sqrt, store

MIN_SQUARES = 1e-30  # smallest sum of squares that is safe to divide by


def make_emphasize(length: int, neighbours: int, emphasis: float = 1.0) -> Any:
    """Make the inlined function emphasize(columns, weights), which turns importances into error weights.

    `columns` is the address of the model's weights, `weights` of their importances, which are overwritten. Both hold
    sixteen groups side by side. `neighbours` adjacent groups share a superblock; `emphasis` scales the fraction. The
    function returns the sum of the error weights of each group.
    """
    sum_of, _ = make_reductions(neighbours)

    @inline
    def emphasize(columns: int, weights: int) -> Any:
        total_m, total_mm, total_xx = broadcast(0.0), broadcast(0.0), broadcast(0.0)
        for column in range(length):
            m, x = load(f32x16, weights + 64 * column), load(f32x16, columns + 64 * column)
            total_m, total_mm, total_xx = total_m + m, fma(m, m, total_mm), fma(x, x, total_xx)
        fraction = broadcast(emphasis) * total_m * total_m * safe_reciprocals(broadcast(length) * total_mm)
        inverse_mean_square = broadcast(length * neighbours) / (sum_of(total_xx) + broadcast(MIN_SQUARES))
        total = broadcast(0.0)
        for column in range(length):
            m, x = load(f32x16, weights + 64 * column), load(f32x16, columns + 64 * column)
            w = fma(m * fraction, sqrt(fma(x * x, inverse_mean_square, broadcast(1.0))) - broadcast(1.0), m)
            store(weights + 64 * column, w)
            total = total + w
        return total

    return emphasize
