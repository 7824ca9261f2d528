"""What an error in a weight counts: the weights of the squared errors that every search for scales adds up.

Importance m_j, the mean square of a column's inputs, says what an error e_j does to what a matrix puts out: it adds
m_j e_j^2 to its power, provided that errors do not go together. Those of rounding do not. But a scale that cuts the
largest weights off takes something away from all of them alike, and outputs are large just because large weights meet
inputs that agree with them. So where the columns of a group matter alike, the errors of large weights count for more,
by sqrt(1 + x_j^2 / mean(x^2)): ggml's factor, which made better files of every model as long as nothing was known of
the columns. Where a few columns matter much more than all the others (massive activations; Sun et al., 2024), having
these right is worth what it costs the large weights elsewhere, and the factor does harm. Between the two stands the
share of the columns that matter:

    share = (sum m)^2 / (n sum m^2),    w_j = m_j (1 + share (sqrt(1 + x_j^2 / mean(x^2)) - 1))

The share is 1 where all columns of a group count alike, or nothing is known of them, and 1 / n where one alone counts.
Sums go over a group, the mean over all groups that share a superblock.

Superblocks whose groups have a min take half of the share: their codes reach from the smallest weight to the largest
one, and less is cut off. Without importance it made Q4_K and Q5_K files of SmolLM2 3 % better, of Gemma 3 no worse,
and with importance it made no difference. Q3_K has no mins, and there less of the factor made SmolLM2 4 % worse.

Nothing is made of how sure an importance is. The inputs of attention and of gates are close to normal: of N tokens the
mean square has a relative error of sqrt(2 / N), far below what columns differ by, and other kinds of text keep their
order. Importances that were drawn towards their mean, added or in powers, made files of SmolLM2 5 to 11 % worse, and no
better ones of Gemma 3 and Qwen2.5-Coder; those of ffn_down, which are least sure, were no exception.

Nothing of this is known where blocks of Q4_0, Q4_1, Q5_0 and Q5_1 are those of ggml, whose outermost weights give a
block its scale. To search for them, with the factor, took 6, 21, 8 and 18 % of the error of SmolLM2's outputs away, and
8 and 16 % of the KL divergence of its Q4_0 and Q4_1 files.

Without importance the factor suits three models together, and is not the best for each: half of its excess over 1 in
Q4_K and Q5_K took 3 % off the KL divergence of SmolLM2's Q3_K_M, left Gemma 3's Q4_K_M as it was, and added 8 % to
Qwen2.5-Coder's.
"""

from typing import Any

from quant.encoders.encoding import every, fold_word, inverses
from quant.jit.vectors import f32x16, fma, inline, load, sqrt, store

NOTHING = 1e-30  # a sum of squares that is less cannot be divided by


def emphasis_word(length: int, neighbours: int, part: float = 1.0) -> Any:
    """The word emphasize(columns, weights): makes the importance of the columns of sixteen groups, side by side, what
    their errors count; returns its sum over each group. The weights of the model lie at `columns`; so many groups,
    which are neighbours, share a superblock. `part`: how much of the share is taken."""
    sum_of, _ = fold_word(neighbours)

    @inline
    def emphasize(columns: int, weights: int) -> Any:
        total_m, total_mm, total_xx = every(0.0), every(0.0), every(0.0)
        for column in range(length):
            m, x = load(f32x16, weights + 64 * column), load(f32x16, columns + 64 * column)
            total_m, total_mm, total_xx = total_m + m, fma(m, m, total_mm), fma(x, x, total_xx)
        share = every(part) * total_m * total_m * inverses(every(length) * total_mm)
        over, total = every(length * neighbours) / (sum_of(total_xx) + every(NOTHING)), every(0.0)
        for column in range(length):
            m, x = load(f32x16, weights + 64 * column), load(f32x16, columns + 64 * column)
            w = fma(m * share, sqrt(fma(x * x, over, every(1.0))) - every(1.0), m)
            store(weights + 64 * column, w)
            total = total + w
        return total

    return emphasize
