"""Statistics by hand and against numpy and scipy, which others trust."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.results.statistics import Difference, box, crossing, estimate, fairness, interval, paired, running_sums

SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(values=SHARES)
def test_quartiles_are_numpys_linear_ones(values) -> None:
    found = box(values)
    expected = np.quantile(values, [0, 0.25, 0.5, 0.75, 1], method="linear")
    assert [found.lowest, found.first, found.median, found.third, found.highest] == pytest.approx(list(expected))


def test_an_interval_is_students_t() -> None:
    values = [0.02, 0.05, -0.01, 0.03]
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert interval(values) == pytest.approx(expected)


def test_two_seeds_are_too_few_and_one_has_no_interval() -> None:
    """49.15 points with two seeds: Student's t with one degree of freedom calls anything no difference."""
    two, one = paired({0: 0.95, 1: 0.90}, {0: 0.40, 1: 0.467}), paired({0: 0.95}, {0: 0.4})
    assert two is not None
    assert one is not None
    assert (two.low, two.shown, two.verdict) == (None, False, "too few seeds")
    assert (one.low, one.shown, one.verdict) == (None, False, "one seed: no interval")


def test_three_seeds_that_agree_show_a_difference_and_noise_does_not() -> None:
    # by hand: differences 2, 2, 3 points; mean 7/3, standard deviation 0.57735; t(2, 97.5%) = 4.302653; half width 1.43422;
    # and 5, -1, 1 points; mean 5/3, standard deviation 3.05505, half width 7.58910
    better = paired({0: 0.92, 1: 0.93, 2: 0.98}, {0: 0.90, 1: 0.91, 2: 0.95})
    noise = paired({0: 0.95, 1: 0.90, 2: 0.96}, {0: 0.90, 1: 0.91, 2: 0.95})
    assert better is not None
    assert noise is not None
    assert (better.mean, better.low, better.high) == pytest.approx((0.0233333, 0.0089911, 0.0376755), abs=1e-6)
    assert (better.verdict, noise.verdict) == ("higher", "no difference shown")
    assert Difference(-0.02, -0.03, -0.01, 3).verdict == "lower"


def test_only_seeds_that_both_have_are_paired() -> None:
    assert paired({0: 0.5, 1: 0.75}, {1: 0.5, 2: 0.1}) == Difference(0.25, None, None, 1)
    assert paired({0: 0.5}, {1: 0.5}) is None


@given(values=SHARES)
def test_the_worst_tenth_is_a_mean_over_at_least_one_client(values) -> None:
    found, worst = fairness(values), sorted(values)[: max(1, len(values) // 10)]
    assert (found.clients, found.worst) == (len(values), min(values))
    assert found.worst_tenth == pytest.approx(np.mean(worst))
    assert found.spread == pytest.approx(np.std(values))


def test_one_client_has_no_spread() -> None:
    assert fairness([0.7]).spread == 0
    assert estimate([0.7]).spread is None


def test_a_running_mean_crosses_later_than_luck() -> None:
    curve = {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.8, 6: 0.9}
    assert crossing(curve, 0.8) == 2
    assert crossing(curve, 0.8, running=2) == 6
    assert crossing(curve, 0.95) is None


def test_sums_run_over_rounds_that_are_missing() -> None:
    assert running_sums({0: 5, 2: 7}, [1, 2, 9]) == [5, 12, 12]
    assert running_sums({}, [1]) == [0]
