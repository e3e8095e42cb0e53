"""The plan of a night: longest first, close to its bound, with sweeps whole."""

import random
from collections.abc import Sequence

from gpugate.results.fleet_plan import Group, divide, group_name, total_s
from gpugate.workload import Point

FLEETS = 200
FEWEST_A_GPU = 10  # groups of cases; with fewer of equal length, one GPU has up to twice the work of another


def groups(*durations_s: float) -> list[Group]:
    """Groups of one case each, `a`, `b` and so on."""
    names = [chr(ord("a") + number) for number in range(len(durations_s))]
    return [Group((name,), seconds) for name, seconds in zip(names, durations_s, strict=True)]


def names(shares: Sequence[Sequence[Group]]) -> list[str]:
    return ["".join(case for group in share for case in group.cases) for share in shares]


def seeded_fleet(seed: int) -> tuple[list[Group], int]:
    """A fleet of up to 16 GPUs with ten to forty groups for each; lognormal durations spread as recorded ones do."""
    draw = random.Random(seed)  # noqa: S311  # the same fleets in every run of the tests
    gpus, spread = draw.randint(1, 16), draw.uniform(0.0, 1.2)
    count = gpus * draw.randint(FEWEST_A_GPU, 40) + draw.randint(0, gpus - 1)
    return [Group((f"{number}",), 20 * draw.lognormvariate(0, spread)) for number in range(count)], gpus


def test_the_longest_goes_first_to_the_gpu_that_is_free_first() -> None:
    assert names(divide(groups(1, 5, 4, 3, 3), 2)) == ["be", "cda"]
    assert names(divide(groups(2, 2, 2, 2), 2)) == ["ac", "bd"]


def test_a_seeded_fleet_takes_at_most_a_tenth_longer_than_its_bound() -> None:
    worst = 0.0
    for seed in range(FLEETS):
        found, gpus = seeded_fleet(seed)
        shares = divide(found, gpus)
        assert sorted(group.cases for share in shares for group in share) == sorted(group.cases for group in found)
        bound_s = max(max(group.duration_s for group in found), total_s(found) / gpus)
        worst = max(worst, max(map(total_s, shares)) / bound_s)
    assert 1 <= worst <= 1.1


def test_the_name_of_a_group_is_that_of_the_sweeps_test() -> None:
    assert group_name("video/decode/batch-8/cuda", Point("batch", 8)) == "video/decode/batch/cuda"
    assert group_name("video/decode/nvdec/cuda", None) == "video/decode/nvdec/cuda"


def test_equal_input_gives_equal_shares_in_whatever_order_it_comes() -> None:
    found, gpus = seeded_fleet(7)
    assert divide(found, gpus) == divide(found[::-1], gpus)
    assert divide(groups(*[1.0] * 9), 4) == divide(groups(*[1.0] * 9)[::-1], 4)
