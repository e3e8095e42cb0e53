"""The plan of a night: longest first, close to its bound, with sweeps whole."""

import random

from gpugate.results.fleet_plan import divide, group_name
from gpugate.workload import Point

FLEETS = 200
FEWEST_A_GPU = 10  # groups of cases; with fewer of equal length, one GPU has up to twice the work of another


def groups(*durations_s: float) -> dict[str, float]:
    """The durations of groups `a`, `b` and so on."""
    return {chr(ord("a") + number): seconds for number, seconds in enumerate(durations_s)}


def seeded_fleet(seed: int) -> tuple[dict[str, float], int]:
    """A fleet of up to 16 GPUs with ten to forty groups for each; lognormal durations spread as recorded ones do."""
    draw = random.Random(seed)  # noqa: S311  # the same fleets in every run of the tests
    gpus, spread = draw.randint(1, 16), draw.uniform(0.0, 1.2)
    count = gpus * draw.randint(FEWEST_A_GPU, 40) + draw.randint(0, gpus - 1)
    return {f"{number}": 20 * draw.lognormvariate(0, spread) for number in range(count)}, gpus


def test_the_longest_goes_first_to_the_gpu_that_is_free_first() -> None:
    assert divide(groups(1, 5, 4, 3, 3), 2) == [["b", "e"], ["c", "d", "a"]]
    assert divide(groups(2, 2, 2, 2), 2) == [["a", "c"], ["b", "d"]]


def test_a_seeded_fleet_takes_at_most_a_tenth_longer_than_its_bound() -> None:
    worst = 0.0
    for seed in range(FLEETS):
        found, gpus = seeded_fleet(seed)
        shares = divide(found, gpus)
        assert sorted(name for share in shares for name in share) == sorted(found)
        bound_s = max(max(found.values()), sum(found.values()) / gpus)
        worst = max(worst, max(sum(found[name] for name in share) for share in shares) / bound_s)
    assert 1 <= worst <= 1.1


def test_the_name_of_a_group_is_that_of_the_sweeps_test() -> None:
    assert group_name("video/decode/batch-8/cuda", Point("batch", 8)) == "video/decode/batch/cuda"
    assert group_name("video/decode/nvdec/cuda", None) == "video/decode/nvdec/cuda"


def test_equal_input_gives_equal_shares_in_whatever_order_it_comes() -> None:
    found, gpus = seeded_fleet(7)
    for one, count in ((found, gpus), (groups(*[1.0] * 9), 4)):
        assert divide(one, count) == divide(dict(reversed(one.items())), count)
