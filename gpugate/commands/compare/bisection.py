"""The search for the commit from which on a case is slower, where a measurement may mislead. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

MISLEADING = 0.2  # the share of single measurements that may be wrong
CERTAIN = 0.99  # of one commit, or of the whole range between commits that cannot be measured
AHEAD = 6  # so many more measurements of the end must be slower than not: chance gives that in 1 of 4,000 searches


@dataclass
class Bisection:
    """A probabilistic bisection of `count` commits, numbered from 1; 0 is the good end.

    Each commit has the probability of being the culprit. A measurement of commit i that is slower multiplies those of
    the commits up to i by 1 - MISLEADING and the others by MISLEADING, and one that is not the other way round. The
    next commit to measure halves the probability (Horstein, Sequential transmission using noiseless feedback, IEEE
    Transactions on Information Theory 9, 1963).
    """

    count: int
    unmeasurable: set[int] = field(default_factory=set)
    end_balance: int = 0  # measurements of the end: those that were slower less the others
    _probability: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self._probability = np.full(self.count, 1 / self.count)

    @property
    def ends_differ(self) -> bool | None:
        """True where the end is slower, False where it is not; None while it must be measured again."""
        return None if abs(self.end_balance) < AHEAD else self.end_balance > 0

    def add(self, commit: int, slower: bool) -> None:
        """Counts a measurement of a commit against the good end."""
        if commit == self.count:
            self.end_balance += 1 if slower else -1
        likelihood = np.where(np.arange(1, self.count + 1) <= commit, 1 - MISLEADING, MISLEADING)
        self._probability *= likelihood if slower else 1 - likelihood
        self._probability /= self._probability.sum()

    def next_commit(self) -> int | None:
        """The commit to measure next; None where the search is over."""
        if self.ends_differ is None:
            return self.count
        if not self.ends_differ or self.culprits():
            return None
        up_to = np.cumsum(self._probability)
        measurable = [commit for commit in range(1, self.count + 1) if commit not in self.unmeasurable]
        return min(measurable, key=lambda commit: abs(float(up_to[commit - 1]) - 0.5), default=None)

    def culprits(self) -> list[int]:
        """The one culprit, or the commits of a range that cannot be told apart; empty while it is not certain."""
        first = 1
        for last in range(1, self.count + 1):
            if last in self.unmeasurable:
                continue  # this commit and the next one cannot be told apart
            if float(self._probability[first - 1 : last].sum()) >= CERTAIN:
                return list(range(first, last + 1))
            first = last + 1
        return []
