"""Packing: nothing lost, nothing over the limit, balanced shares."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from leyden.learner.pack import first_fit_decreasing, share_out

sizes = st.lists(st.integers(1, 100), max_size=40)


@given(sizes)
def test_every_item_is_in_one_bin_within_the_capacity(items: list[int]) -> None:
    bins = first_fit_decreasing(items, 100)
    assert sorted(i for b in bins for i in b) == list(range(len(items)))
    assert all(sum(items[i] for i in b) <= 100 for b in bins)


@given(sizes)
def test_no_two_bins_fit_into_one(items: list[int]) -> None:
    loads = sorted(sum(items[i] for i in b) for b in first_fit_decreasing(items, 100))
    assert all(a + b > 100 for a, b in itertools.pairwise(loads))


@given(sizes, st.integers(1, 5))
def test_shares_cover_all_and_differ_by_at_most_one_item(costs: list[int], n: int) -> None:
    shares = share_out(costs, n)
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    loads = [sum(costs[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_packing_by_hand() -> None:
    assert first_fit_decreasing([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
