"""A gate is never green by absence: every selected case gets a verdict or an error, whatever its code raises."""

import pytest

from tests.tiny_project import QUICK, TinyProject, check_no_traceback

RIGHT = "\ndef right(context):\n    return sleeping(2)\n"
BOTH = 'Optimization("quick", quick, {"cpu": 0.01}), Optimization("right", right, {"cpu": 0.01})'
OUTCOMES = {
    "skip": 'pytest.skip("no licence")',
    "importorskip": 'pytest.importorskip("torch_nowhere", reason="no licence")',
    "xfail": 'pytest.xfail("no licence")',
}
OTHERS = {
    "fail": ('pytest.fail("no licence")', "Failed: no licence"),
    "cancelled": ('raise asyncio.CancelledError("no licence")', "CancelledError: no licence"),
    "generator exit": ('raise GeneratorExit("no licence")', "GeneratorExit: no licence"),
    "own": ('raise type("Gone", (BaseException,), {})("no licence")', "Gone: no licence"),
    "without words": ('raise type("Mute", (BaseException,), {"__str__": lambda self: 1 / 0})', "Mute: no message"),
}
# Where the statement stands, the optimizations that it concerns, and what the engine calls the side and its doing.
PLACES = {
    "build": ("def quick(context):\n    {0}", "quick", "quick", "being built"),
    "step": (
        "def quick(context):\n    def step(x):\n        {0}\n    return Side(step)",
        "quick",
        "quick",
        "running its first step",
    ),
    "close": (
        "def quick(context):\n    def close():\n        {0}\n    return Side(lambda x: x + x, close=close)",
        "quick",
        "quick",
        "being closed",
    ),
    "engaged": (
        "def quick(context):\n    def engaged():\n        {0}\n    return Side(lambda x: x + x, engaged=engaged)",
        "quick",
        "quick",
        "being asked whether it engaged",
    ),
    "baseline": (f"{QUICK}\ndef baseline(context):\n    {{0}}", "quick right", "baseline", "being built"),
    "inputs": (f"{QUICK}\ndef inputs(context, index):\n    {{0}}", "quick right", "inputs of tiny", "being made"),
    "proof": (
        f"{QUICK}\nfrom gpugate.workload import Proof\n\ndef show(context):\n    {{0}}\n",
        "quick",
        "quick",
        "showing learns",
    ),
}
WITH_PROOF = BOTH.replace('{"cpu": 0.01})', '{"cpu": 0.01}, proofs=(Proof("learns", show),))', 1)


def write(tiny: TinyProject, place: str, statement: str) -> None:
    build = PLACES[place][0].format(statement)
    tiny.workload(f"import asyncio\n\nimport pytest\n\n{build}\n{RIGHT}", WITH_PROOF if place == "proof" else BOTH)


def measured_of(tiny: TinyProject) -> set[str]:
    return {case_id.split("/")[1] for case_id, case in tiny.json()["cases"].items() if case["measurement"] is not None}


@pytest.mark.parametrize("place", PLACES)
def test_a_skip_inside_a_users_code_is_a_skip_for_a_developer_and_an_error_for_a_gate(
    tiny: TinyProject, place: str
) -> None:
    write(tiny, place, OUTCOMES["skip"])
    _, concerned, side, doing = PLACES[place]
    others = {"quick", "right"} - set(concerned.split())
    lenient = tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json")
    assert lenient.status == 0, lenient.text
    for name in concerned.split():
        assert tiny.json()["cases"][f"tiny/{name}/cpu"]["skipped"] == f"{side} was skipped while {doing}: no licence"
    assert measured_of(tiny) == others
    strict = tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json", "--gate")
    assert strict.status == 1
    for name in concerned.split():
        error = tiny.json()["cases"][f"tiny/{name}/cpu"]["error"]
        assert error.startswith(f"tiny/{name}/cpu: {side} failed while {doing}: Skipped: no licence; ")
        assert error in strict.text
    assert measured_of(tiny) == others
    check_no_traceback(strict.text)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_way_to_skip_is_no_way_past_a_gate(tiny: TinyProject, outcome: str) -> None:
    write(tiny, "step", OUTCOMES[outcome])
    assert tiny.run("--perf-device=cpu", "-k", "outputs").status == 0
    assert tiny.run("--perf-device=cpu", "-k", "outputs", "--gate", "--perf-json=run.json").status == 1
    assert tiny.json()["cases"]["tiny/quick/cpu"]["error"]
    assert measured_of(tiny) == {"right"}


def test_what_skips_itself_is_not_recorded(tiny: TinyProject) -> None:
    write(tiny, "step", OUTCOMES["skip"])
    result = tiny.run("--perf-device=cpu", "--update-baselines", "--perf-processes=1")
    assert result.status == 1
    assert (
        "tiny/quick/cpu failed (tiny/quick/cpu: quick failed while running its first step: Skipped: no" in result.text
    )
    assert not tiny.baseline.exists()


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("place", ["build", "step"])
def test_whatever_a_users_code_raises_is_an_error_of_its_case_alone(tiny: TinyProject, place: str, kind: str) -> None:
    statement, words = OTHERS[kind]
    write(tiny, place, statement)
    result = tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json")
    assert result.status == 1
    assert tiny.json()["cases"]["tiny/quick/cpu"]["error"].endswith(words)
    assert measured_of(tiny) == {"right"}
    assert "1 failed, 1 passed" in result.text
    check_no_traceback(result.text)
