"""BPE merging in plain Python: the oracle of the kernels in `localinfer.kernels.bpe`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise


def merge(word: str, merges: Sequence[str], control: Collection[str] = ()) -> list[str]:
    """Apply the merge of lowest rank, leftmost first, until no pair can be merged. Of equal merges the last one counts;
    merges that use or produce the text of a control token do not."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    ranks = {pair: rank for pair, rank in ranks.items() if not {*pair, "".join(pair)} & set(control)}
    chunks = list(word)
    while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(chunks)) if pair in ranks]:
        _, i = min(pairs)
        chunks[i : i + 2] = ["".join(chunks[i : i + 2])]
    return chunks


def ids_of(chunks: Sequence[str], ids: Mapping[str, int], byte_token: Callable[[int], str]) -> list[int]:
    """Return the ids of texts; a text without a token becomes those of its bytes, as far as they have tokens."""
    names = [[chunk] if chunk in ids else map(byte_token, chunk.encode()) for chunk in chunks]
    return [ids[name] for chunk in names for name in chunk if name in ids]
