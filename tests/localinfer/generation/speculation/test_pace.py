"""How many guesses pay: what is measured decides."""

from itertools import repeat

import numpy as np
import pytest

from localinfer.generation.speculation.pace import Cost, Middle, Pace, Record


def measured(first: float, slope: float, one: float = 0.1) -> Cost:
    """A pass of n tokens takes (first + slope n) times as long as of one."""
    cost = Cost()
    for _ in range(60):
        cost.tell(1, one)
        for tokens in (4, 16, 32):
            cost.tell(tokens, one * (first + slope * tokens))
    return cost


def paced(cost: Cost) -> Pace:
    pace = Pace()
    pace.cost = cost
    return pace


@pytest.mark.parametrize(("first", "slope"), [(1.1, 0.01), (1.1, 0.07), (1.0, 0.5), (0.2, 0.9)])
def test_the_line_is_what_was_measured(first: float, slope: float) -> None:
    cost = measured(first, slope)
    assert cost.one == pytest.approx(0.1)
    for tokens in (4, 8, 24):
        assert cost.ratio(tokens) == pytest.approx(max(1.0, first + slope * tokens), rel=0.15)


def test_passes_of_one_length_move_the_line_there() -> None:
    cost = Cost()
    for _ in range(60):
        cost.tell(1, 0.1)
        cost.tell(16, 0.4)
    assert cost.ratio(16) == pytest.approx(4.0, rel=0.1)
    assert cost.ratio(4) < cost.ratio(16) < cost.ratio(48)


def test_a_pass_that_was_interrupted_tells_little() -> None:
    cost = measured(1.1, 0.07)
    before = cost.one, cost.ratio(16)
    cost.tell(1, 30.0)
    cost.tell(16, 30.0)
    assert (cost.one, cost.ratio(16)) == pytest.approx(before, rel=0.1)


def test_one_that_becomes_slower_is_noticed() -> None:
    cost = measured(1.1, 0.07)
    for _ in range(Middle.LATEST):
        cost.tell(1, 0.2)
    assert cost.one == 0.2


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.9, 0.98])
@pytest.mark.parametrize(("first", "slope"), [(1.1, 0.07), (1.0, 0.5), (1.0, 0.01)])
def test_the_best_number_is_that_of_the_most_tokens_a_second(chance: float, first: float, slope: float) -> None:
    """Beside a twin that tries all of them: those between whole tiles cost no less."""
    cost = measured(first, slope)
    tokens = np.cumsum(chance ** np.arange(64.0))
    rates = [tokens[n - 1] / (cost.ratio(n) if n > 1 else 1.0) for n in range(1, 65)]
    best = paced(cost).best(repeat(chance), 0, 63)[0]
    assert (1 + best) % 4 == 0 or best == 0
    whole_tiles = [1.05, *rates[3::4]]
    assert rates[best] == max(whole_tiles) if best else max(whole_tiles) == 1.05 or chance ** 3 < 0.02


def test_nothing_is_guessed_where_it_does_not_pay() -> None:
    assert paced(measured(0.0, 1.0)).best(repeat(0.95), 0, 48)[0] == 0  # several tokens take as long as one by one
    assert paced(measured(1.1, 0.07)).best(repeat(0.1), 0, 48)[0] == 0
    assert paced(measured(1.1, 0.07)).best([], 0, 48)[0] == 0
    assert paced(measured(1.1, 0.07)).best(repeat(0.99), 0, 0)[0] == 0


def test_limits() -> None:
    pace = paced(measured(1.1, 0.07))
    assert pace.best(repeat(0.99), 0, 5)[0] == 5
    assert pace.best(repeat(0.99), 0, 2)[0] == 2
    assert pace.best(repeat(0.4), 10, 48)[0] in (0, 11)
    assert pace.best(repeat(0.5), 8, 6)[0] == 0


def test_a_record_learns_and_forgets() -> None:
    record = Record()
    for _ in range(100):
        record.tell(5, came_true=True)
    assert record.chance(5) > 0.95
    assert record.chance(7) == record.chance(5) != record.chance(8)
    for _ in range(40):
        record.tell(5, came_true=False)
    assert record.chance(5) < 0.2
