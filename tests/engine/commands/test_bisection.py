"""The search finds the culprit although measurements mislead, and names none where nothing changed."""

import random

import pytest

from gpugate.commands.compare.bisection import Bisection

COMMITS, SEARCHES, MOST = 64, 100, 400


def search(
    culprit: int | None, misleading: float, draw: random.Random, unmeasurable: frozenset[int] = frozenset()
) -> Bisection:
    """A whole search; each measurement is wrong with the probability `misleading`."""
    bisection = Bisection(COMMITS)
    for _ in range(MOST):
        commit = bisection.next_commit()
        if commit is None:
            return bisection
        if commit in unmeasurable:
            bisection.unmeasurable.add(commit)
            continue
        slower = culprit is not None and commit >= culprit
        bisection.add(commit, slower is not (draw.random() < misleading))
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(("misleading", "found"), [(0.0, SEARCHES), (0.2, 95)])
def test_the_culprit_is_found(misleading: float, found: int) -> None:
    draw = random.Random(1)  # noqa: S311
    culprits = [draw.randint(1, COMMITS) for _ in range(SEARCHES)]
    named = [search(culprit, misleading, draw).culprits() for culprit in culprits]
    assert sum(name == [culprit] for name, culprit in zip(named, culprits, strict=True)) >= found


def test_a_history_without_a_change_has_no_culprit() -> None:
    draw = random.Random(2)  # noqa: S311
    searches = [search(None, 0.2, draw) for _ in range(SEARCHES)]
    assert [one.ends_differ for one in searches] == [False] * SEARCHES


def test_commits_that_cannot_be_measured_are_named_with_their_neighbour() -> None:
    draw = random.Random(3)  # noqa: S311
    assert search(30, 0.0, draw, frozenset({30, 31})).culprits() == [30, 31, 32]
    assert search(32, 0.0, draw, frozenset({30, 31})).culprits() == [30, 31, 32]
    assert search(33, 0.0, draw, frozenset({30, 31})).culprits() == [33]
    assert search(1, 0.0, draw, frozenset({2})).culprits() == [1]


def test_a_single_commit_is_the_culprit_once_the_ends_differ() -> None:
    bisection = Bisection(1)
    for _ in range(6):
        assert (bisection.next_commit(), bisection.ends_differ) == (1, None)
        bisection.add(1, slower=True)
    assert (bisection.next_commit(), bisection.ends_differ, bisection.culprits()) == (None, True, [1])
