"""The plan of a measurement: its times, sizes and limits. The facts afterwards are in `gpugate.measurement.record`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpugate.faults.fault import Fault

BLOCK_MS = {"cuda": 20.0, "cpu": 10.0}
WARM_UP_S = {"cuda": 0.3, "cpu": 0.1}  # on a CPU, ten blocks; drift is the same for both blocks of a pair
# The half-width of a speedup's interval at which sampling stops. On a CPU, processes differ by 1 % and more, and a
# narrower interval in one of them makes no record sharper.
HALF_WIDTH = {"cuda": 0.005, "cpu": 0.01}
FEWEST_PAIRS, FRESH_INPUTS = 8, 3

# The reference's time of a step beside the other side, over that alone: a full cache or a lower clock costs less.
SLOWED = 2.0
SLOWDOWN_ENDED = 1.25  # the largest ratio of a reference that is as fast again, once both sides are closed
REMEMBERS = 3.0  # ratio of times on new and on timed inputs; on a busy CPU an honest side reached 2.4


@dataclass(frozen=True)
class Settings:
    """The settings of one measurement.

    `budget_s` covers warm-up, rebuilding and sampling of one case; the first build and compilation come on top.
    `half_width` is the relative half-width of the speedup's interval at which sampling stops. `seed` draws the fresh
    inputs and the side that runs first. `fault` is put into the optimized side, on purpose.

    `duet` is True where the sides are two versions of one: the workers of the idle side are stopped, the outputs of the
    first build are compared on fresh inputs alone. `planned` is True where sampling ends with `min_builds` builds of
    `pairs_per_build` pairs, however wide the interval is.
    """

    budget_s: float = 6.0
    half_width: float = HALF_WIDTH["cuda"]
    pairs_per_build: int = 4
    min_builds: int = 4  # two builds in either order
    seed: int = 0
    fault: Fault | None = None
    duet: bool = False
    planned: bool = False
    prove: bool = True  # False where the proofs ran before, or another process runs them
    count: bool = True  # False in a duet whose steps another process counts, or nobody looks at

    def escalate(self) -> Settings:
        """Returns the settings for an undecided result: twice the time, half the width, no proofs again."""
        return replace(self, budget_s=2 * self.budget_s, half_width=self.half_width / 2, prove=False)
