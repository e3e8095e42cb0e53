"""The bill of a step against its record and its contract, on made-up measurements."""

from dataclasses import replace
from typing import Any

import pytest

from gpugate.judging.bill import BillChange, broken_limit, compare_bill, detectable_by_bill
from gpugate.results.bill import Bill, Bills
from gpugate.results.reason import Reason, ReasonCode
from gpugate.workload import Limit
from gpugate.workload.counter_names import EXACT, EXACT_UNLESS_AUTOTUNED
from tests.support.judged_cases import COSTS, COUNTED, KERNELS, RECORDED, billed, bills, measured, record, with_bill


@pytest.mark.parametrize("name", [*EXACT, *EXACT_UNLESS_AUTOTUNED])
def test_where_algorithms_are_raced_only_what_the_program_chose_must_repeat(name: str) -> None:
    for autotuned in (0.0, 1.0):
        found = compare_bill(measured(autotuned=autotuned, **{name: 8e9}), record(optimized_counters={name: 7e9}))
        assert (name in found.grown, found.compared) == (not autotuned or name in EXACT, False)


@pytest.mark.parametrize(
    ("name", "then", "now", "is_grown"),
    [
        ("kernels", 7.0, 8.0, True),
        ("kernels", 7.0, 7.0, False),
        ("kernels", 7.0, 6.0, False),
        ("kernels", 153.75, 160.25, False),  # of a pipeline's own threads, whose work is bound to no step
        ("kernels", 153.75, 180.0, True),
        ("kernels", 11.0, 12.125, False),  # a whole number by chance
        ("kernels", 11.0, 13.25, True),
        ("pageable_copies", 0.0, 0.25, True),
        ("operators", 19.0, 20.0, True),
        ("operators", 19.0, 19.0, False),
        ("operators", 98.75, 107.5, False),
        ("operators", 98.75, 120.0, True),
        ("device_to_host_bytes", 43e6, 43.2e6, False),  # compressed pictures
        ("device_to_host_bytes", 43e6, 44e6, True),
        ("peak_bytes", 2.64e6, 4.7e6, False),  # a block of the allocator
        ("peak_bytes", 2.64e6, 4.8e6, True),
        ("peak_bytes", 4e9, 4.079e9, False),
        ("peak_bytes", 4e9, 4.1e9, True),
        ("memsets", 3.0, 6.0, False),
        ("streams", 8.0, 9.0, False),
    ],
)
def test_a_count_may_not_rise_but_for_counts_that_do_not_repeat_exactly(
    name: str, then: float, now: float, is_grown: bool
) -> None:
    found = compare_bill(measured(**{name: now}), record(optimized_counters={**COUNTED, name: then}))
    assert (name in found.grown) is is_grown


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ({}, set()),
        ({"kernel_ms": 8.15}, set()),
        ({"kernel_ms": 8.17}, {"kernel_ms"}),
        ({"host_to_device_ms": 1.24}, set()),
        ({"host_to_device_ms": 1.26}, {"host_to_device_ms"}),
        ({"cpu_ms": 4.19}, set()),
        ({"cpu_ms": 4.21}, {"cpu_ms"}),
        ({"cpu_ms": 8.0, "spinning": 1.0}, set()),
        ({"cpu_ms": 4.4, "reference": {**COSTS, "spinning": 1.0, "cpu_ms": 8.0}}, {"cpu_ms"}),  # it is no control
        ({"kernel_ms": 4.0}, set()),
    ],
)
def test_a_time_grows_beyond_its_tolerance(items: dict[str, Any], expected: set[str]) -> None:
    assert set(compare_bill(with_bill(measured(), **items), billed()).grown) == expected


def test_gpu_work_of_a_microsecond_grows_by_half_of_one() -> None:
    for now_ms, is_grown in ((0.0014, False), (0.0016, True)):
        found = compare_bill(with_bill(measured(), kernel_ms=now_ms), billed(kernel_ms=0.001))
        assert ("kernel_ms" in found.grown) is is_grown


@pytest.mark.parametrize("name", ["kernel_ms", "host_to_device_ms"])
def test_a_time_may_rise_by_three_standard_deviations_of_the_recorded_processes(name: str) -> None:
    """The spread of 0.158 between five processes is 10 % for each step of a tenth. Their reference has no such time."""
    alone = [replace(one, reference=Bill({}, {})) for one in bills(spread=0.1)]
    wide = record(replace(RECORDED, bills=tuple(alone)))
    for rise, is_grown in ((1.4, False), (1.7, True)):
        found = with_bill(measured(), **{name: rise * COSTS[name]})
        assert (name in compare_bill(found, wide).grown) is is_grown


QUICK = {"enqueue_ms": 7.0, "synchronizing_calls": 0.0}  # of a step of 10 ms


@pytest.mark.parametrize(
    ("kernel_ms", "processes", "counters", "least"),
    [
        (9.0, 5, QUICK, 0.018),  # 2 % of the GPU work
        (9.0, 3, QUICK, 0.018),
        (9.0, 2, QUICK, None),
        (8.9, 5, QUICK, None),
        (9.0, 5, {**QUICK, "enqueue_ms": 7.1}, None),  # the host may slow such a step down, too
        (9.0, 5, {**QUICK, "synchronizing_calls": 1.0}, None),
        (9.0, 5, {}, None),
    ],
)
def test_the_bill_of_a_step_of_kernels_shows_a_slowdown(
    kernel_ms: float, processes: int, counters: dict[str, float], least: float | None
) -> None:
    """The ratios of both sides repeat exactly."""
    recorded = tuple(
        replace(one, optimized=replace(one.optimized, counters={**one.optimized.counters, "kernel_ms": kernel_ms}))
        for one in bills(processes, spread=0.0)
    )
    then = record(replace(RECORDED, bills=recorded), optimized_counters=counters)
    found = detectable_by_bill(with_bill(measured(), kernel_ms=9.0), then)
    assert found == (None if least is None else pytest.approx(least))


def test_the_bill_shows_less_where_processes_differ_and_where_kernels_were_chosen_anew() -> None:
    steady = replace(RECORDED, optimized_ms=8.0)
    loud = [replace(one, reference=bills()[2].reference) for one in bills(spread=0.01)]  # a deviation of 1.6 %
    then = record(replace(steady, bills=tuple(loud)), optimized_counters={**QUICK, "enqueue_ms": 1.0})
    assert detectable_by_bill(with_bill(measured()), then) == pytest.approx(0.105, abs=0.003)  # 3 and 3.1 deviations
    anew = with_bill(measured(autotuned=1.0), {"another_kernel": 8.0})
    exact = replace(then, current=replace(steady, bills=bills()))
    assert detectable_by_bill(anew, exact) == pytest.approx(0.1)


@pytest.mark.parametrize(("reference_ms", "fell"), [(8.0, True), (7.6, False)])
def test_gpu_work_falls_beside_the_reference(reference_ms: float, fell: bool) -> None:
    now = with_bill(measured(), reference={**COSTS, "kernel_ms": reference_ms}, kernel_ms=7.6)
    assert compare_bill(now, billed()) == BillChange(True, {}, fell)


@pytest.mark.parametrize("name", ["kernel_ms", "cpu_ms"])
@pytest.mark.parametrize(
    ("reference_ms", "optimized_ms", "is_grown"),
    [
        (4.0, 4.4, True),  # no more than the recorded hosts differ
        (4.4, 4.4, False),  # a slower host
        (4.8, 5.4, True),  # a slower host, and more work
        (3.6, 4.0, False),  # the reference alone became faster
        (3.2, 4.2, False),  # so did the reference, and most of the change is its own
        (3.6, 4.5, True),  # it did, but most of the change is more work
        (3.2, 3.6, False),  # a faster host hides it
    ],
)
def test_a_time_beside_the_reference_grows_by_less_than_hosts_differ(
    name: str, reference_ms: float, optimized_ms: float, is_grown: bool
) -> None:
    wide = record(replace(RECORDED, bills=bills(spread=0.1)))
    scale = COSTS[name] / 4
    found = with_bill(measured(), reference={**COSTS, name: scale * reference_ms}, **{name: scale * optimized_ms})
    assert (name in compare_bill(found, wide).grown) is is_grown


OTHER_KERNELS = {"nvjet_hsh": 5.4, "elementwise_kernel": 3.0}  # 5 % more than KERNELS


@pytest.mark.parametrize(
    ("processes_of_others", "autotuned", "kernels_ms", "is_grown"),
    [
        (0, 1.0, KERNELS, False),
        (0, 1.0, {**KERNELS, "one_more": 0.4}, True),  # the same kernels were chosen, and one more runs
        (0, 1.0, OTHER_KERNELS, False),  # kernels that were chosen by their time may take a tenth more
        (0, 1.0, {**OTHER_KERNELS, "one_more": 0.5}, True),
        (0, 0.0, OTHER_KERNELS, True),  # the program's choice
        (2, 0.0, {**KERNELS, "one_more": 0.4}, True),  # of three processes with these kernels
        (2, 0.0, OTHER_KERNELS, False),  # two processes took as long
        (3, 1.0, OTHER_KERNELS, False),
        (3, 1.0, {**OTHER_KERNELS, "one_more": 0.4}, True),
    ],
)
def test_gpu_work_is_compared_with_that_of_the_same_kernels_where_three_processes_have_them(
    processes_of_others: int, autotuned: float, kernels_ms: dict[str, float], is_grown: bool
) -> None:
    recorded = list(bills(5))
    for place, one in enumerate(recorded[:processes_of_others]):
        counters = {**one.optimized.counters, "kernel_ms": sum(OTHER_KERNELS.values())}
        recorded[place] = replace(one, optimized=Bill(counters, OTHER_KERNELS))
    found = with_bill(measured(), kernels_ms, autotuned=autotuned)
    assert ("kernel_ms" in compare_bill(found, record(replace(RECORDED, bills=tuple(recorded)))).grown) is is_grown


def test_a_new_kernel_hides_no_growth_by_making_recorded_ones_too_short_to_be_named() -> None:
    kernels = {"sm90_xmma_fprop": 7.7, **{f"short_{number}": 0.085 for number in range(4)}}  # each just above 1 %
    side = Bill({**COUNTED, **COSTS, "kernel_ms": sum(kernels.values())}, kernels)
    found = with_bill(measured(), {**kernels, "one_more": 0.6}, autotuned=1.0)
    assert "kernel_ms" in compare_bill(found, record(replace(RECORDED, bills=(Bills(side, side),) * 5))).grown


def test_the_kernel_that_grew_most_is_named() -> None:
    found = compare_bill(with_bill(measured(), {**KERNELS, "sm90_xmma_fprop": 5.5}), billed())
    facts = found.grown["kernel_ms"].facts
    assert (facts["then"], facts["now"]) == (pytest.approx(8.0), pytest.approx(8.5))
    named = facts["kernel"], facts["kernel_then"], facts["kernel_now"]
    assert named == ("sm90_xmma_fprop", pytest.approx(5.0), pytest.approx(5.5))


def test_a_short_copy_may_take_much_longer_than_recorded() -> None:
    """Its rise is below 2 % of the recorded step."""
    short = record(replace(RECORDED, bills=bills(device_to_host_ms=0.01)))
    assert compare_bill(with_bill(measured(), device_to_host_ms=0.15), short).grown == {}
    assert set(compare_bill(with_bill(measured(), device_to_host_ms=0.25), short).grown) == {"device_to_host_ms"}


@pytest.mark.parametrize("recorded", [(), (None,) * 5, bills(2), (*bills(2), None)])
def test_a_record_of_less_than_three_bills_has_no_times_to_compare(recorded: Any) -> None:
    found = compare_bill(with_bill(measured(), kernel_ms=80.0, kernels=60.0), record(replace(RECORDED, bills=recorded)))
    assert (found.compared, set(found.grown)) == (False, {"kernels"})
    assert compare_bill(replace(measured(), optimized_counters={}), billed()).compared is False


@pytest.mark.parametrize(("ours", "theirs", "leaks"), [(1.0, 0.0, True), (0.0, 0.0, False), (512.0, 512.0, False)])
def test_memory_that_grows_every_step_is_a_leak_unless_the_reference_has_it_too(
    ours: float, theirs: float, leaks: bool
) -> None:
    found = replace(measured(grown_bytes=ours), reference_counters={"grown_bytes": theirs} if theirs else {})
    facts = {"item": "grown_bytes", "then": theirs, "now": ours}
    for then in (None, record()):
        leak = compare_bill(found, then).grown.get("grown_bytes")
        assert leak == (Reason(ReasonCode.ITEM_GREW, facts) if leaks else None)


AT_MOST, LEAST_OF, MOST_OF = (
    Limit("kernels", at_most=58),
    Limit("kernels", at_least_of_reference=2),
    Limit("kernels", at_most_of_reference=0.5),
)


@pytest.mark.parametrize(
    ("limit", "found", "reference", "facts"),
    [
        (AT_MOST, 58.0, None, None),
        (AT_MOST, 59.0, None, {"value": 59.0, "side": "above", "limit": 58}),
        (AT_MOST, None, None, {}),
        (Limit("kernels", at_most=0), 1.0, None, {"value": 1.0, "side": "above", "limit": 0}),
        (Limit("kernels", at_least=1), 0.0, None, {"value": 0.0, "side": "below", "limit": 1}),
        (MOST_OF, 30.0, 60.0, None),
        (MOST_OF, 31.0, 60.0, {"value": 31.0, "side": "above", "limit": 30.0, "share": 0.5}),
        (MOST_OF, 1.0, 0.0, {"value": 1.0, "side": "above", "limit": 0.0, "share": 0.5}),
        (MOST_OF, 30.0, None, {}),
        (LEAST_OF, 1.0, 60.0, {"value": 1.0, "side": "below", "limit": 120.0, "share": 2}),
    ],
)
def test_a_limit_is_broken_beyond_its_bound_and_by_a_counter_that_was_not_measured(
    limit: Limit, found: float | None, reference: float | None, facts: dict[str, Any] | None
) -> None:
    counted, theirs = ({} if value is None else {"kernels": value} for value in (found, reference))
    broken = broken_limit(limit, counted, theirs)
    assert broken == (None if facts is None else Reason(ReasonCode.LIMIT_BROKEN, {"counter": "kernels", **facts}))
