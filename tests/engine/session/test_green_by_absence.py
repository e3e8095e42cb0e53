"""A gate is never green by absence: every selected case gets a verdict or an error, whatever its code raises."""

import shlex

import pytest

from gpugate.commands import cli
from gpugate.session.selection import describe_selection
from tests.support.tiny_project import PROMISE, QUICK, TinyProject, check_no_traceback

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
# Where the statement stands, and what the engine calls that.
PLACES = {
    "build": ("def NAME(context):\n    RAISE", "being built"),
    "step": ("def NAME(context):\n    def step(x):\n        RAISE\n    return Side(step)", "running its first step"),
    "close": (
        "def NAME(context):\n    def close():\n        RAISE\n    return Side(lambda x: x + x, close=close)",
        "being closed",
    ),
    "engaged": (
        "def NAME(context):\n    def engaged():\n        RAISE\n    return Side(lambda x: x + x, engaged=engaged)",
        "calling engaged()",
    ),
    "proof": ("def show(context):\n    RAISE\n\ndef NAME(context):\n    return sleeping(1)", "showing learns"),
}
RAISING = [("skip", place) for place in PLACES] + [("importorskip", "step"), ("xfail", "step")]
RAISING += [(kind, place) for kind in OTHERS for place in ("build", "step")]
IMPORTS_OF_CASES = "import asyncio\n\nimport pytest\n\nfrom gpugate.workload import Proof\n\n"


def test_whatever_a_users_code_raises_is_of_its_case_alone_and_no_skip_is_a_way_past_a_gate(tiny: TinyProject) -> None:
    builds, optimizations = [], []
    for number, (kind, place) in enumerate(RAISING):
        statement = OUTCOMES[kind] if kind in OUTCOMES else OTHERS[kind][0]
        builds.append(PLACES[place][0].replace("NAME", f"quick_{number}").replace("RAISE", statement))
        proofs = ', proofs=(Proof("learns", show),)' if place == "proof" else ""
        optimizations.append(f'Optimization("quick_{number}", quick_{number}, {{"cpu": 0.01}}{proofs})')
    optimizations.append('Optimization("right", right, {"cpu": 0.01})')
    tiny.workload(IMPORTS_OF_CASES + "\n\n".join([*builds, RIGHT]), ", ".join(optimizations))
    for options in ((), ("--gate",)):
        result = tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json", *options)
        assert result.status == 1
        for number, (kind, place) in enumerate(RAISING):
            case, doing = tiny.json()["cases"][f"tiny/quick_{number}/cpu"], PLACES[place][1]
            if kind in OUTCOMES and not options:
                assert case["skipped"] == f"quick_{number} was skipped while {doing}: no licence"
            else:
                words = OTHERS[kind][1] if kind in OTHERS else "); a gate and a recording accept no skip"
                assert case["error"].startswith(f"quick_{number} failed while {doing}: ")
                assert words in case["error"]
                assert " (tiny.py:" in case["error"]
                assert case["error"] in result.text
        measured = [name for name, case in tiny.json()["cases"].items() if case["measurement"] is not None]
        assert measured == ["tiny/right/cpu"]
        check_no_traceback(result.text)


@pytest.mark.parametrize(
    ("source", "side", "doing"),
    [
        (f"{QUICK}\ndef baseline(context):\n    {OUTCOMES['skip']}", "baseline", "being built"),
        (f"{QUICK}\ndef inputs(context, index):\n    {OUTCOMES['skip']}", "inputs of tiny", "being made"),
    ],
)
def test_a_skip_of_what_all_cases_share_is_a_skip_for_a_developer_and_an_error_for_a_gate(
    tiny: TinyProject, source: str, side: str, doing: str
) -> None:
    tiny.workload(f"import pytest\n\n{source}\n{RIGHT}", BOTH)
    for options, status, key in (((), 0, "skipped"), (("--gate",), 1, "error")):
        assert tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json", *options).status == status
        for name in ("quick", "right"):
            told = f"was skipped while {doing}" if key == "skipped" else f"failed while {doing}: Skipped"
            assert tiny.json()["cases"][f"tiny/{name}/cpu"][key].startswith(f"{side} {told}: no licence")


# --- verdicts that no test holds ------------------------------------------------------------------------------------

REGRESSED = PROMISE.replace('"cpu": 0.01', '"cpu": 500')
FAILING = 'def quick(context):\n    raise ValueError("no licence")'
MARK = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            item.add_marker({mark})
"""
XFAIL = MARK.format(mark='pytest.mark.xfail(reason="a known bug")')
SKIP = MARK.format(mark='pytest.mark.skip(reason="a known bug")')
CATCHING = "with pytest.raises(pytest.fail.Exception):\n        gate(workload.speedup)"
COPYING = CATCHING.replace("workload.speedup", "copy(workload.speedup)")
FORGING = f"from copy import copy\n    gate(workload.equivalence)\n    {COPYING}"


def promises(tiny: TinyProject, body: str) -> None:
    tiny.write("perf_tests/test_promises.py", f"import pytest\n\n\ndef test_it(workload, gate):\n    {body}\n")


def gate(tiny: TinyProject, *options: str) -> tuple[int, list[str]]:
    """The exit status of a gate on the CPU, and the sentences at its end."""
    result = tiny.run("--gate", "--perf-device=cpu", "--perf-json=run.json", *options)
    check_no_traceback(result.text)
    return result.status, [line for line in result.text.splitlines() if line.startswith("ERROR: ")]


def test_a_test_that_holds_several_verdicts_fails_by_the_worst(tiny: TinyProject) -> None:
    tiny.workload(QUICK, REGRESSED)
    promises(tiny, "gate(workload.throughput, workload.speedup)")
    assert "Failed: REGRESSED speedup of tiny/quick/cpu" in tiny.run("--gate", "--perf-device=cpu").text


@pytest.mark.parametrize(
    ("build", "body", "conftest", "words"),
    [
        (QUICK, "assert workload.speedup", "", "no test held a verdict of tiny/quick/cpu: "),
        (QUICK, "gate(workload.speedup)", XFAIL, "REGRESSED speedup of tiny/quick/cpu failed no test: "),
        (QUICK, CATCHING, "", "REGRESSED speedup of tiny/quick/cpu failed no test: "),
        (QUICK, FORGING, "", "REGRESSED speedup of tiny/quick/cpu is no verdict that this run made for test_it["),
        (QUICK, "gate(workload.speedup)", SKIP, "no test measured tiny/quick/cpu: "),
        (FAILING, "gate(workload.speedup)", XFAIL, "the error of tiny/quick/cpu failed no test: "),
    ],
)
def test_what_is_bad_and_failed_no_test_is_red(
    tiny: TinyProject, build: str, body: str, conftest: str, words: str
) -> None:
    tiny.workload(build, REGRESSED)
    promises(tiny, body)
    tiny.write("perf_tests/conftest.py", conftest)
    status, errors = gate(tiny)
    assert (status, tiny.json()["exit_status"], tiny.json()["interrupted"]) == (1, 1, False)
    assert errors[0].startswith(f"ERROR: {words}")
    assert errors == [f"ERROR: {problem}" for problem in tiny.json()["problems"]]
    assert len(errors) == (2 if conftest is SKIP else 1)


def test_an_absence_that_fails_no_test_is_red_unless_it_is_accepted(tiny: TinyProject) -> None:
    promises(tiny, "gate(workload.equivalence)")
    tiny.write("perf_tests/conftest.py", XFAIL)
    status, (error,) = gate(tiny, "--perf-device=auto")
    assert status == 1
    assert error.startswith("ERROR: the absence of tiny/quick/cuda failed no test: ")
    assert gate(tiny, "--perf-device=auto", "--allow-missing=cuda") == (0, [])


DROPS = {
    "before": """def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "quick" not in item.name]
""",
    "after": """def pytest_collection_finish(session):
    session.items[:] = [item for item in session.items if "quick" not in item.name]
""",
    "parameters": """@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    yield
    metafunc._calls[:] = [call for call in metafunc._calls if "quick" not in call.id]
""",
}
DROPPED = "no selected test measures tiny/quick/cpu, which this machine has recorded"
STEP = ": let their tests run, "


@pytest.fixture
def of_two(tiny: TinyProject, recorded_project: TinyProject) -> TinyProject:
    """A project with two cases, one of which is recorded."""
    tiny.take_baseline(recorded_project)
    tiny.workload(f"{QUICK}\n{RIGHT}", f'{PROMISE}, Optimization("right", right, {{"cpu": 0.01}})')
    promises(tiny, "gate(workload.equivalence)")
    return tiny


@pytest.mark.parametrize("kind", DROPS)
def test_a_recorded_case_that_a_hook_drops_is_red(of_two: TinyProject, kind: str) -> None:
    assert gate(of_two) == (0, [])
    of_two.write("perf_tests/conftest.py", f"import pytest\n\n{DROPS[kind]}")
    status, (error,) = gate(of_two)
    assert status == 1
    assert error.startswith(f"ERROR: {DROPPED}{STEP}")
    assert cli.main(["verdict", str(of_two.path / "run.json")]) == 1


@pytest.mark.parametrize(
    ("options", "listed", "steps"), [(("--gate", "-k", "right"), 1, 0), ((), 1, 1), (("-k", "right"), 0, 0)]
)
def test_a_recorded_case_that_is_left_out_is_listed_unless_a_developer_selects_others(
    of_two: TinyProject, options: tuple[str, ...], listed: int, steps: int
) -> None:
    """A selection needs no next step, such as the command that deletes the record."""
    of_two.write("perf_tests/conftest.py", DROPS["before"])
    result = of_two.run("--perf-device=cpu", *options)
    assert result.status == 0, result.text
    assert (result.text.count(DROPPED), result.text.count(STEP)) == (listed, steps)
    assert "ERROR" not in result.text


def test_a_recorded_case_of_another_shard_or_with_an_accepted_absence_is_no_dropped_one(of_two: TinyProject) -> None:
    assert [gate(of_two, f"--perf-shard={number}/2") for number in (1, 2)] == [(0, []), (0, [])]
    assert of_two.json()["shard"]["number"] == 2
    needy = PROMISE.replace('{"cpu"', 'needs=Needs(packages=("nowhere",)), min_speedup={"cpu"')
    of_two.workload(f"{QUICK}\n{RIGHT}", f'{needy}, Optimization("right", right, {{"cpu": 0.01}})')
    of_two.write("perf_tests/conftest.py", DROPS["before"])
    assert gate(of_two, "--allow-missing=nowhere") == (0, [])
    assert gate(of_two)[0] == 1


OWN_FIXTURE = """
import pytest

@pytest.fixture
def workload():
    return 1

@pytest.mark.parametrize("workload", [1, 2])
def test_parameters(workload):
    assert workload in (1, 2)

def test_it(workload):
    assert workload == 1
"""


def test_a_fixture_of_the_same_name_hides_no_recorded_case(tiny: TinyProject, recorded_project: TinyProject) -> None:
    tiny.take_baseline(recorded_project)
    conftest = (tiny.path / "conftest.py").read_text(encoding="utf-8")
    tiny.write("conftest.py", conftest.replace('register_module("tiny")', ""))
    source = (tiny.path / "tiny.py").read_text(encoding="utf-8")
    tiny.write("other.py", source.replace('Workload("tiny"', 'Workload("other"'))
    for name, folder in {"tiny": "own_tiny", "other": "with_other"}.items():
        lines = f"import {name}\nfrom gpugate.catalogue import register\n\nregister({name}.WORKLOADS[0])\n"
        tiny.write(f"perf_tests/{folder}/conftest.py", lines)
    (tiny.path / "perf_tests/test_promises.py").unlink()
    tiny.write("perf_tests/with_other/test_other.py", "def test(workload, gate):\n    gate(workload.equivalence)\n")
    tiny.write("perf_tests/own_tiny/test_tiny.py", OWN_FIXTURE)
    status, (error,) = gate(tiny)
    assert status == 1
    assert error.startswith(f"ERROR: {DROPPED}{STEP}")


RESETS = {
    "around and last": """@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    session.exitstatus = 0
    session.config.session = session
    yield
    session.exitstatus = 0

def pytest_unconfigure(config):
    config.session.exitstatus = 0
""",
    "exit": "def pytest_sessionfinish(session):\n    pytest.exit('done', returncode=0)",
    "failures": """@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    yield
    session.testsfailed = 0
    return True
""",
}


@pytest.mark.parametrize("moment", RESETS)
def test_a_plugin_that_resets_the_exit_status_makes_no_gate_green(tiny: TinyProject, moment: str) -> None:
    tiny.workload(optimizations=REGRESSED)
    tiny.write("perf_tests/conftest.py", f"import pytest\n\n{RESETS[moment]}\n")
    result = tiny.run("--gate", "--perf-device=cpu", "-k", "speedup", "--perf-report=night")
    assert result.status == 1, result.text
    assert tiny.json("night/run.json")["exit_status"] == 1
    assert cli.main(["verdict", str(tiny.path / "night")]) == 1


IMPORTS = "from dataclasses import replace\n    from gpugate.results.verdict import Outcome, Verdict\n    "
FORGED = {
    "another check": "gate(Verdict('knee', 'x', Outcome.PASS))",
    "a changed verdict": "gate(replace(workload.speedup, outcome=Outcome.PASS))",
    "a copy": "gate(replace(workload.equivalence))",
    "the knee of no sweep": "gate(Verdict('knee', workload.case.id, Outcome.PASS))",
    "the verdict of another case": "gate(vars(request.config).setdefault('first', workload.equivalence))",
}


def test_a_verdict_that_this_run_did_not_make_for_the_case_fails_its_test(tiny: TinyProject) -> None:
    tiny.workload(f"{QUICK}\n{RIGHT}", f'{PROMISE}, Optimization("right", right, {{"cpu": 0.01}})')
    bodies = (f"{IMPORTS}gate(workload.counters)\n    {forged}" for forged in FORGED.values())
    tests = (f"def test_{number}(request, workload, gate):\n    {body}\n" for number, body in enumerate(bodies))
    tiny.write("perf_tests/test_promises.py", "\n".join(tests))
    result = tiny.run("--perf-device=cpu", "-k", "right or test_4")
    assert result.status == 1, result.text
    for number in range(len(FORGED)):
        assert f"is no verdict that this run made for test_{number}" in result.text
    check_no_traceback(result.text)


@pytest.mark.parametrize(
    ("words", "selection"),
    [
        ((), ""),
        (("-m", "gpu", "perf_tests"), " -m gpu"),
        (("-m", "not gpu", "-k", "net"), " -k net -m 'not gpu'"),
        (("-k", "net", "--deselect=a"), None),
        (("--ignore=a",), None),
        (("perf_tests/test_promises.py",), ""),
        (("perf_tests/test_promises.py::test_it",), None),
    ],
)
def test_a_whole_night_is_one_that_no_option_and_no_single_test_narrows(
    pytester: pytest.Pytester, words: tuple[str, ...], selection: str | None
) -> None:
    assert describe_selection(pytester.parseconfig(*words)) == selection


def test_a_selection_of_tests_selects_checks_and_the_report_says_which_none_held(tiny: TinyProject) -> None:
    words = "checks that no selected test held: speedup, throughput, counters"
    result = tiny.run("--gate", "--perf-device=cpu", "-k", "outputs", "--perf-report=night")
    assert result.status == 0
    assert words in result.text
    assert words in (tiny.path / "night/summary.md").read_text(encoding="utf-8")
    run = tiny.json("night/run.json")
    assert (run["exit_status"], run["problems"], run["cases"]["tiny/quick/cpu"]["held"]) == (0, [], ["equivalence"])
    assert "no selected test" not in tiny.run("--perf-device=cpu", "-k", "outputs").text


# --- nothing is measured --------------------------------------------------------------------------------------------

PLAIN = "def test_plain():\n    pass\n"


def test_a_plain_test_may_take_the_fixture_gate_where_nothing_is_measured(tiny: TinyProject) -> None:
    tiny.write("other/test_plain.py", "def test_taking(gate):\n    pass\n\ndef test_calling(gate):\n    gate()\n")
    result = tiny.run("other")
    assert "1 failed, 1 passed" in result.text
    assert "Failed: nothing is measured in this session: `gate` serves tests of `workload` or `sweep`" in result.text
    check_no_traceback(result.text)


def test_a_gate_on_plain_tests_alone_measured_nothing(tiny: TinyProject) -> None:
    tiny.write("other/test_plain.py", PLAIN)
    words = "ERROR: the gate measured nothing: select cases that this machine can run"
    result = tiny.run("--gate", "other")
    assert result.status == 1
    assert words in result.text
    assert tiny.run("--gate", "other", "--collect-only").status == 0
    assert tiny.run("--gate", "other", "-k", "nowhere").status == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_mistyped_case_is_answered_with_similar_names(tiny: TinyProject) -> None:
    result = tiny.run("-k", "tiny/quikc", "--gate")
    assert result.status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "-k 'tiny/quikc' selects no test; cases have names such as tiny/quick" in result.text
    marked = tiny.run("-m", "gpuu")
    assert marked.status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "-m 'gpuu' selects no test; cases on a GPU have the mark gpu\n" in marked.text


def test_an_absence_of_what_no_case_needs_is_refused_before_a_case_is_measured(tiny: TinyProject) -> None:
    result = tiny.run("--gate", "--allow-missing", "cuda,cudaa")
    assert result.status == pytest.ExitCode.USAGE_ERROR
    known = "c++, compute-capability, cuda, gpus"
    assert f"--allow-missing cudaa is nothing that a case needs: they need {known}\n" in result.text


def test_a_record_whose_optimization_is_gone_is_red_until_it_is_deleted(
    tiny: TinyProject, recorded_project: TinyProject
) -> None:
    tiny.take_baseline(recorded_project)
    tiny.workload(RIGHT, 'Optimization("right", right, {"cpu": 0.01})')
    promises(tiny, "gate(workload.equivalence)")
    lost = "tiny/quick/cpu is recorded and no longer in the catalogue: restore it, or delete its record: "
    for options in ((), ("-k", "right")):
        lenient = tiny.run("--perf-device=cpu", *options)
        assert (lenient.status, lenient.text.count(lost)) == (0, 1), lenient.text
        assert "no selected test measures" not in lenient.text
    for options in (("-k", "right"), ()):
        status, (error,) = gate(tiny, *options)
        assert status == 1
        assert error.startswith(f"ERROR: {lost}")
        assert cli.main(["verdict", str(tiny.path / "run.json")]) == 1
    command = shlex.split(error.rpartition(": ")[2])
    assert command[0] == "gpugate"
    assert cli.main(command[1:]) == 0
    assert gate(tiny) == (0, [])
