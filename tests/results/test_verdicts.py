"""Verdicts against scipy's own tests, and what a limit of rounds leaves open."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from coterie.results.verdicts import Censored, Differences, Ratios, Region, decide, seeds_for_difference, seeds_for_ratio

ABOVE, BELOW, WITHIN = Region(0, math.inf), Region(-math.inf, 0), Region(-0.01, 0.01)
LESS = Region(-math.inf, 1.0)


def rounds(*values: float | None, beyond: float = 100) -> list[Censored]:
    return [Censored(value, beyond) for value in values]


def ratios(ours: list[Censored], theirs: list[Censored]) -> Ratios:
    return Ratios.of(ours, theirs)


def test_a_difference_has_the_p_value_and_the_interval_of_a_paired_t_test() -> None:
    ours, theirs = [0.71, 0.74, 0.69, 0.75], [0.70, 0.70, 0.68, 0.72]
    found = Differences([a - b for a, b in zip(ours, theirs, strict=True)])
    expected = stats.ttest_rel(ours, theirs)
    assert found.p_value(ABOVE) == pytest.approx(expected.pvalue)
    assert found.interval(0.9) == pytest.approx(tuple(expected.confidence_interval(0.9)))


def test_being_equal_is_shown_by_an_interval_within_the_margin_and_not_by_one_that_includes_zero() -> None:
    tight, wide, far = Differences([0.001, -0.001, 0.0]), Differences([0.02, -0.02, 0.0]), Differences([0.05, 0.051, 0.049])
    assert [decide([(each, WITHIN)])[0].outcome for each in (tight, wide, far)] == ["shown", "not shown", "shown contrary"]


@pytest.mark.parametrize(("region", "outcome"), [(ABOVE, "shown"), (BELOW, "shown contrary")])
def test_a_clear_difference_is_shown_or_shown_contrary(region, outcome) -> None:
    assert decide([(Differences([0.1, 0.11, 0.12]), region)])[0].outcome == outcome


def test_no_difference_in_any_seed_shows_nothing() -> None:
    assert decide([(Differences([0.0, 0.0, 0.0]), ABOVE)])[0].outcome == "not shown"


def test_two_seeds_show_nothing_however_far_apart() -> None:
    [found] = decide([(Differences([0.5, 0.6]), ABOVE)])
    assert (found.outcome, found.low, found.could_have_seen) == ("not shown", None, None)


def test_holm_asks_more_of_the_clearest_and_stops_at_the_first_that_is_undecided() -> None:
    p_values = (0.012, 0.02, 0.04)
    effects = [_with_p(p) for p in p_values]
    found = decide([(each, ABOVE) for each in effects])
    assert [each.outcome for each in found] == ["shown", "shown", "shown"]  # 0.012 < 0.05/3, 0.02 < 0.05/2, 0.04 < 0.05
    assert [each.confidence for each in found] == pytest.approx([1 - 0.05 / 3, 1 - 0.05 / 2, 1 - 0.05])
    stopped = decide([(_with_p(p), ABOVE) for p in (0.02, 0.03, 0.04)])
    assert [each.outcome for each in stopped] == ["not shown"] * 3  # 0.02 > 0.05/3, so that 0.04 is not shown either
    assert {each.confidence for each in stopped} == {1 - 0.05 / 3}


def test_the_interval_that_is_told_is_the_one_that_decides() -> None:
    for found in decide([(_with_p(p), ABOVE) for p in (0.001, 0.02, 0.03, 0.2)]):
        assert (found.outcome == "shown") == (found.low is not None and found.low > 0)


def test_what_was_not_run_is_not_counted_in_the_correction() -> None:
    found = decide([(_with_p(0.04), ABOVE), (None, ABOVE), (None, ABOVE)])
    assert [each.outcome for each in found] == ["shown", "not run", "not run"]


def test_rounds_are_compared_as_the_sign_test_does() -> None:
    found = ratios(rounds(*range(10, 18)), rounds(*[20] * 7, 12))
    assert found.p_value(LESS) == pytest.approx(stats.binomtest(7, 8).pvalue)
    assert found.interval(1 - stats.binomtest(7, 8).pvalue) == (11 / 20, 16 / 20)


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        (rounds(*[10] * 6), rounds(*[20] * 6), "shown"),
        (rounds(*[20] * 6), rounds(*[10] * 6), "shown contrary"),
        (rounds(*[10] * 5), rounds(*[20] * 5), "not shown"),  # five seeds are too few for an interval of 95%
        (rounds(*[10] * 6), rounds(*[None] * 6), "shown"),  # they took more than 100
        (rounds(*[None] * 6), rounds(*[90] * 6), "shown contrary"),
        (rounds(*[None] * 6), rounds(*[None] * 6), "not shown"),  # nobody got there
        (rounds(*[10] * 5, None), rounds(*[20] * 6), "not shown"),
        (rounds(*[10] * 8, None), rounds(*[20] * 9), "shown"),
    ],
)
def test_a_target_that_was_not_reached_is_censored(ours, theirs, outcome) -> None:
    assert decide([(ratios(ours, theirs), LESS)])[0].outcome == outcome


def test_a_limit_of_rounds_does_not_show_more_than_it_knows() -> None:
    at_a_fifth, at_less = Region(-math.inf, 0.2), Region(-math.inf, 0.05)
    found = ratios(rounds(*[10] * 6), rounds(*[None] * 6))  # a ratio below 10 / 100
    assert [decide([(found, region)])[0].outcome for region in (at_a_fifth, at_less)] == ["shown", "not shown"]


@pytest.mark.parametrize(("difference", "spread", "comparisons"), [(0.02, 0.015, 1), (0.01, 0.02, 4)])
def test_the_seeds_of_a_difference_give_the_power_that_is_asked_for(difference, spread, comparisons) -> None:
    def power(seeds: int) -> float:
        critical = stats.t.ppf(1 - 0.05 / comparisons / 2, seeds - 1)
        return float(stats.nct.sf(critical, seeds - 1, difference / spread * math.sqrt(seeds)))

    seeds = seeds_for_difference(difference, spread, comparisons)
    assert power(seeds) >= 0.8 > power(seeds - 1)


def test_the_seeds_of_a_ratio_give_the_power_that_is_asked_for() -> None:
    share = stats.norm.cdf(-math.log(0.8) / 0.2)

    def power(seeds: int) -> float:
        shown = [count for count in range(seeds + 1) if count > seeds / 2 and stats.binomtest(count, seeds).pvalue <= 0.05]
        return float(sum(stats.binom.pmf(count, seeds, share) for count in shown))

    seeds = seeds_for_ratio(0.8, 0.2)
    assert power(seeds) >= 0.8
    assert all(power(fewer) < 0.8 for fewer in range(3, seeds))


def _with_p(p_value: float) -> Differences:
    """Four differences whose paired t-test has a p-value."""
    shape = [-1.0, 1.0, -0.5, 0.5]
    error = stats.sem(shape)
    return Differences([each + float(stats.t.isf(p_value / 2, 3)) * error for each in shape])
