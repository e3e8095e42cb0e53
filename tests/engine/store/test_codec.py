"""JSON and back, strictly, on made-up values."""

import json
import math
import reprlib
from dataclasses import replace
from typing import get_args

import pytest

from gpugate.machine.environment import Environment
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, StopReason, TimedBuild, Yardstick
from gpugate.results.verdict import Outcome, Verdict
from gpugate.store.codec import FormatError, from_json, to_json
from gpugate.store.json_file import parse, pretty
from gpugate.units import round_stored
from gpugate.workload import CaseId, Name, WorkloadName

WORDS = "'narrow', 'noise', 'budget' or 'outputs not comparable'"
COST = SideCost(build_s=1.5, first_step_s=0.25, peak_bytes=12345678901)


@pytest.mark.parametrize("reason", get_args(StopReason))
@pytest.mark.parametrize("pairs", [0, 1, 5])
def test_what_is_written_is_read_back(reason: StopReason, pairs: int) -> None:
    taken = tuple(Pair(round_stored(1.23456789e-4 * 10**i), 2.0, i % 2 == 0, (None, 1980)[i % 2]) for i in range(pairs))
    throttled = TimedBuild(taken[:3], 2, ("hardware slowdown",), 7, 9)
    measurement = Measurement(
        case_id="net/tf32/cuda",
        instances=(TimedBuild(taken), throttled)[: pairs + 1],
        stopped_because=reason,
        differences=(Difference(math.inf, 1e-4, 0.5, "fresh inputs"), Difference(0.1, math.inf, None, "timed steps")),
        reference_cost=COST,
        optimized_cost=replace(COST, peak_bytes=None),
        reference_counters={"kernels": 57.0, "api_ms": 0.123456789},
        not_engaged="no graph",
        inert=True,
        event_host_ratio=0.987654321,
        seed=2**40 - 1,
    )
    assert from_json(Measurement, parse(pretty(to_json(measurement)))) == measurement


def test_a_verdict_may_rest_on_nan_and_the_file_stays_json() -> None:
    numbers = {"low": 1.25, "class": "sm_90", "minimum": None, "error": math.inf, "other": math.nan}
    text = pretty(to_json(Verdict("equivalence", "net/tf32/cuda", Outcome.WRONG, numbers=numbers)))
    assert json.loads(text, parse_constant=pytest.fail)["numbers"] == {**numbers, "error": "Infinity", "other": "NaN"}
    found = dict(from_json(Verdict, parse(text)).numbers)
    assert math.isnan(float(found.pop("other") or 0))
    assert found == {name: value for name, value in numbers.items() if name != "other"}


def measured(*instances: TimedBuild) -> Measurement:
    difference = Difference(0.0, 0.0, None, "timed steps")
    return Measurement("net/tf32/cpu", instances, "narrow", (difference,), COST, COST, {"kernels": 1.0})


def test_samples_are_columns_with_six_digits() -> None:
    pairs = (Pair(1.23456789, 0.000123456789, True), Pair(2.0, 1234567.0, False, 1980))
    data = to_json(measured(TimedBuild(pairs), TimedBuild(pairs[:1])))["instances"]
    assert data["reference_ms"] == [[1.23457, 2.0], [1.23457]]
    assert data["optimized_ms"] == [[0.000123457, 1234567.0], [0.000123457]]
    assert data["reference_first"] == [[True, False], [True]]
    assert data["sm_clock_mhz"] == [[None, 1980], [None]]


def test_a_field_of_older_files_is_read_and_not_written() -> None:
    found = measured(TimedBuild((Pair(1.0, 0.5, True),)))
    data = to_json(found)
    older = {**data, "input_sets": 2, "instances": {**data["instances"], "reference_built_first": [True]}}
    assert from_json(Measurement, older) == found
    assert "input_sets" not in data
    assert "reference_built_first" not in data["instances"]


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (["stopped_because"], "bored", f"stopped_because is 'bored', not {WORDS}"),
        (["inert"], 1, "inert is 1, not a valid boolean"),
        (["wall_s"], json.loads("1e999"), "wall_s is inf, not a finite number"),
        (
            ["differences", 0, "max_error"],
            "NaN",
            "differences[0].max_error is 'NaN', not a value in its range or 'Infinity'",
        ),
        (["differences", 0, "extra"], 1, "differences[0] has an unknown field 'extra'"),
        (["reference_cost"], [], "reference_cost is [], not an object"),
        (
            ["instances", "reference_ms", 0, 1],
            -1.0,
            "instances.reference_ms[0][1] is -1.0, not greater than or equal to 1e-09",
        ),
        (
            ["instances", "reference_steps_per_block", 0],
            10**400,
            f"instances.reference_steps_per_block[0] is {reprlib.repr(10**400)}, not less than or equal to 9.0072e+15",
        ),
        (["instances", "optimized_ms", 1], [], "instances: its lists differ in length"),
        (["instances", "discarded"], [0], "instances: its lists differ in length"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(path: list[str | int], value: object, sentence: str) -> None:
    instance = TimedBuild((Pair(1.0, 0.5, True), Pair(1.0, 0.5, False)))
    data = at = json.loads(pretty(to_json(measured(instance, instance))))
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(FormatError) as refused:
        from_json(Measurement, data)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "name",
    ["../../.git/hooks/x", "/etc/x", "a\\..\\b", "a\0b", "..", "", "a/b/c", "Net", "net ", "n" * 201, ".lock"],
)
def test_text_that_is_no_name_for_files_and_tests_is_refused(name: str) -> None:
    for cls, value in ((Name, f"{name}/x"), (WorkloadName, f"{name}/x/y"), (CaseId, f"{name}/a/cuda"), (Name, name)):
        with pytest.raises(FormatError, match=r"^the document is .*, not a name for files and tests"):
            from_json(cls, value)


def test_half_a_surrogate_pair_is_no_name() -> None:
    with pytest.raises(FormatError, match=r"^a name in values is '\\ud800', not a valid string"):
        from_json(Yardstick, {"values": {"\ud800": 1.0}})


def test_a_missing_field_is_named_even_where_it_has_a_default() -> None:
    data = to_json(Environment("cpu", "EPYC", "EPYC", 2, "3.12"))
    del data["driver"]
    with pytest.raises(FormatError, match=r"^the document has no field 'driver'$"):
        from_json(Environment, data)


def test_a_field_that_older_files_lack_is_stored_only_where_it_is_set() -> None:
    equal, unequal = (Difference(0.0, 0.0, None, "fresh inputs", unequal=count) for count in (None, 3))
    assert to_json(equal).keys() == {"relative_l2", "max_error", "top1_agreement", "when", "problem"}
    assert to_json(unequal)["unequal"] == 3
    assert [from_json(Difference, to_json(one)) for one in (equal, unequal)] == [equal, unequal]
    with pytest.raises(FormatError, match="unequal is -1, not greater"):
        from_json(Difference, {**to_json(equal), "unequal": -1})


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (Yardstick({"copy_gbs": math.nan}), "values.copy_gbs is nan, not a finite number"),
        (Yardstick({"copy_gbs": -1.0}), "values.copy_gbs is -1.0, not greater than or equal to 1e-30"),
        (
            measured(TimedBuild((Pair(math.nan, 1.0, True),))),
            "instances.reference_ms[0][0] is nan, not a finite number",
        ),
    ],
)
def test_what_cannot_be_read_is_not_written(value: object, sentence: str) -> None:
    with pytest.raises(FormatError) as refused:
        to_json(value)
    assert str(refused.value) == sentence
