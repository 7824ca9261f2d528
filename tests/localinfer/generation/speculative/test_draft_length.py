"""The draft length model: measured costs and acceptance rates determine the draft length."""

from itertools import repeat

import numpy as np
import pytest

from localinfer.generation.speculative.draft_length import (
    AcceptanceByMatchLength,
    DraftLengthModel,
    PassCost,
    RunningMedian,
)


def measured(first: float, slope: float, one: float = 0.1) -> PassCost:
    """Return costs where a pass of n tokens takes (first + slope n) times as long as one of a single token."""
    cost = PassCost()
    for _ in range(60):
        cost.update(1, one)
        for tokens in (4, 16, 32):
            cost.update(tokens, one * (first + slope * tokens))
    return cost


def length_model(cost: PassCost) -> DraftLengthModel:
    model = DraftLengthModel()
    model.cost = cost
    return model


@pytest.mark.parametrize(("first", "slope"), [(1.1, 0.01), (1.1, 0.07), (1.0, 0.5), (0.2, 0.9)])
def test_cost_model_fits_a_line_through_measurements(first: float, slope: float) -> None:
    cost = measured(first, slope)
    assert cost.one_token_seconds == pytest.approx(0.1)
    for tokens in (4, 8, 24):
        assert cost.ratio(tokens) == pytest.approx(max(1.0, first + slope * tokens), rel=0.15)


def test_cost_model_follows_measurements_of_a_single_length() -> None:
    cost = PassCost()
    for _ in range(60):
        cost.update(1, 0.1)
        cost.update(16, 0.4)
    assert cost.ratio(16) == pytest.approx(4.0, rel=0.1)
    assert cost.ratio(4) < cost.ratio(16) < cost.ratio(48)


def test_outliers_hardly_change_the_cost_model() -> None:
    cost = measured(1.1, 0.07)
    before = cost.one_token_seconds, cost.ratio(16)
    cost.update(1, 30.0)
    cost.update(16, 30.0)
    assert (cost.one_token_seconds, cost.ratio(16)) == pytest.approx(before, rel=0.1)


def test_cost_model_adapts_to_a_slower_model() -> None:
    cost = measured(1.1, 0.07)
    for _ in range(RunningMedian.WINDOW):
        cost.update(1, 0.2)
    assert cost.one_token_seconds == 0.2


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9, 0.98])
@pytest.mark.parametrize(("first", "slope"), [(1.1, 0.07), (1.0, 0.5), (1.0, 0.01)])
def test_best_length_maximizes_tokens_per_second(acceptance: float, first: float, slope: float) -> None:
    """Compare with an exhaustive search over the lengths that fill whole tiles."""
    cost = measured(first, slope)
    tokens = np.cumsum(acceptance ** np.arange(64.0))
    rates = [tokens[n - 1] / (cost.ratio(n) if n > 1 else 1.0) for n in range(1, 65)]
    best = length_model(cost).best_length(repeat(acceptance), 0, 63)[0]
    assert (1 + best) % 4 == 0 or best == 0
    whole_tiles = [1.05, *rates[3::4]]
    assert rates[best] == max(whole_tiles) if best else max(whole_tiles) == 1.05 or acceptance**3 < 0.02


def test_no_draft_where_it_does_not_pay() -> None:
    assert (
        length_model(measured(0.0, 1.0)).best_length(repeat(0.95), 0, 48)[0] == 0
    )  # a batch is as slow as single tokens
    assert length_model(measured(1.1, 0.07)).best_length(repeat(0.1), 0, 48)[0] == 0
    assert length_model(measured(1.1, 0.07)).best_length([], 0, 48)[0] == 0
    assert length_model(measured(1.1, 0.07)).best_length(repeat(0.99), 0, 0)[0] == 0


def test_best_length_respects_limits() -> None:
    model = length_model(measured(1.1, 0.07))
    assert model.best_length(repeat(0.99), 0, 5)[0] == 5
    assert model.best_length(repeat(0.99), 0, 2)[0] == 2
    assert model.best_length(repeat(0.4), 10, 48)[0] in (0, 11)
    assert model.best_length(repeat(0.5), 8, 6)[0] == 0


def test_acceptance_rates_adapt() -> None:
    rates_by_match = AcceptanceByMatchLength()
    for _ in range(100):
        rates_by_match.update(5, is_accepted=True)
    assert rates_by_match.rate(5) > 0.95
    assert rates_by_match.rate(7) == rates_by_match.rate(5) != rates_by_match.rate(8)
    for _ in range(40):
        rates_by_match.update(5, is_accepted=False)
    assert rates_by_match.rate(5) < 0.2
