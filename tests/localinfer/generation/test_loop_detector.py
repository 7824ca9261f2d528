"""Detection of repetition loops."""

import random

import pytest

from localinfer.generation.loop_detector import (
    CHECK_INTERVAL,
    MIN_COPIES,
    MIN_TOTAL_TOKENS,
    LoopDetector,
    repeated_period,
)


def naive_period(ids: list[int]) -> int:
    """Return the period by its definition."""
    for p in range(1, 257):
        n = max(MIN_COPIES * p, MIN_TOTAL_TOKENS)
        if len(ids) >= n and all(ids[-1 - back] == ids[-1 - back % p] for back in range(n)):
            return p
    return 0


@pytest.mark.parametrize("p", [1, 2, 7, 24, 60, 256])
def test_loop_is_found(p: int) -> None:
    random.seed(p)
    copy = [random.randrange(1000) for _ in range(p)]
    ids = list(range(50)) + copy * (max(MIN_COPIES, -(-MIN_TOTAL_TOKENS // p)) + CHECK_INTERVAL)
    assert repeated_period(ids) == naive_period(ids) > 0
    detector = LoopDetector()
    assert sum(detector.push(id) for id in ids * 2) == 1
    assert detector.is_looping


def test_period_matches_definition() -> None:
    random.seed(0)
    for _ in range(300):
        copy = [random.randrange(3) for _ in range(random.randrange(1, 40))]
        ids = [random.randrange(3) for _ in range(20)] + copy * random.randrange(1, 20)
        assert repeated_period(ids) == naive_period(ids)


def test_texts_without_a_loop() -> None:
    random.seed(0)
    assert not repeated_period([random.randrange(50) for _ in range(2000)])
    assert not repeated_period([1] * (MIN_TOTAL_TOKENS - 1))
    assert not repeated_period(list(range(100)) * (MIN_COPIES - 1))
    assert not repeated_period([])
