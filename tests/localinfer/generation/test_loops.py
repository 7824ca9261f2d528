"""Texts that go round in circles."""

import random

import pytest

from localinfer.generation.loops import COPIES, INTERVAL, SHORTEST, LoopWatch, period


def naive_period(ids: list[int]) -> int:
    """By the definition: at its end, the text is some of its tokens over and over."""
    for p in range(1, 257):
        n = max(COPIES * p, SHORTEST)
        if len(ids) >= n and all(ids[-1 - back] == ids[-1 - back % p] for back in range(n)):
            return p
    return 0


@pytest.mark.parametrize("p", [1, 2, 7, 24, 60, 256])
def test_loop_is_found(p: int) -> None:
    random.seed(p)
    copy = [random.randrange(1000) for _ in range(p)]
    ids = list(range(50)) + copy * (max(COPIES, -(-SHORTEST // p)) + INTERVAL)
    assert period(ids) == naive_period(ids) > 0
    watch = LoopWatch()
    assert sum(watch.push(id) for id in ids * 2) == 1
    assert watch.found


def test_as_the_naive_one() -> None:
    random.seed(0)
    for _ in range(300):
        copy = [random.randrange(3) for _ in range(random.randrange(1, 40))]
        ids = [random.randrange(3) for _ in range(20)] + copy * random.randrange(1, 20)
        assert period(ids) == naive_period(ids)


def test_texts_that_are_none() -> None:
    random.seed(0)
    assert not period([random.randrange(50) for _ in range(2000)])
    assert not period([1] * (SHORTEST - 1))
    assert not period(list(range(100)) * (COPIES - 1))
    assert not period([])
