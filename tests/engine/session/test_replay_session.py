"""`pytest --perf-replay RUN.json`: tests hold a stored run to its promises, and nothing is measured."""

import json
import re
from dataclasses import replace

import pytest

from gpugate.results.case import Remembered
from gpugate.results.summary import History
from gpugate.results.verdict import Outcome
from gpugate.store import run_file
from gpugate.store.codec import to_json
from gpugate.workload import Contract, Limit
from tests.support.stored_runs import MACHINE, NO_TENSORRT, PROMISE, case, every_outcome, stored
from tests.support.tiny_project import TinyProject, check_no_traceback

# No file of this project imports torch.
PLAIN = """
    from gpugate.catalogue import register
    from gpugate.workload import Optimization, Side, Size, Workload

    def build(context):
        raise AssertionError("built")

    sizes = {kind: Size(items=1, flops=1, bytes=1) for kind in ("cpu", "cuda")}
    promises = {kind: 1.0 for kind in sizes}
    names = ("pass", "regressed", "no-baseline", "skipped", "failed", "unfinished", "newer")
    register(Workload("tiny", build, build, sizes, tuple(Optimization(name, build, promises) for name in names)))

    def pytest_unconfigure():
        import sys

        print("torch was imported:", "torch" in sys.modules)
"""
UNBUILDABLE = """
def quick(context):
    raise AssertionError("built")
"""
REFUSED = {
    "--update-baselines": "--perf-replay measures nothing that --update-baselines could record: give one of them",
    "--perf-mutate=sync": "--perf-replay measures nothing that --perf-mutate could spoil: give one of them",
    "--perf-replay=": "--perf-replay is '': give a file that --perf-json wrote",
    "--perf-json=../{here}/run.json": "would write over the run that is replayed: give it another path",
    "--perf-device=cpu": "run.json was measured on cuda: leave it out",
    "-n2": "--perf-replay measures nothing that -n 2 could speed up: use -n 0",
    **{
        f"--perf-tolerance={value}": f"--perf-tolerance is {value!r}: give a number of percent above 0 and below 100"
        for value in ("0", "-1", "nan", "inf", "100", "little", "1e-322", "")
    },
}


@pytest.fixture
def plain(tiny: TinyProject) -> TinyProject:
    """A project of seven cases that cannot be built, on a machine without a GPU, and a run of an H200."""
    tiny.write("conftest.py", PLAIN)
    wanted = [one for one in every_outcome() if one.optimization in PLAIN]
    stored(tiny.path / "run.json", *wanted, case("unfinished", None))
    return tiny


def outcomes(text: str) -> dict[str, list[str]]:
    """The words of -v for the four tests of each case, in their order."""
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        test, _, word = line.partition("] ")
        if test.startswith("perf_tests/test_promises.py::"):
            said.setdefault(test.partition("[")[2].partition("]")[0], []).extend(word.split()[:1])
    return said


def speedup(project: TinyProject, name: str, case_id: str) -> str:
    verdicts = project.json(name)["cases"][case_id]["verdicts"]
    return next(str(verdict["outcome"]) for verdict in verdicts if verdict["check"] == "speedup")


def test_a_live_run_is_decided_again_without_measuring_and_writes_the_same_file(tiny: TinyProject) -> None:
    live = tiny.run("--perf-json=run.json", "--perf-tolerance=7")
    assert live.status == 0
    tiny.workload(UNBUILDABLE)
    again = tiny.run("--perf-replay=run.json", "--perf-json=again.json", "--perf-budget=30", "--perf-seed=1")
    assert again.status == 0, again.text
    was, now = tiny.json(), tiny.json("again.json")
    assert now == was
    verdicts = [json.dumps([made["verdicts"] for made in one["cases"].values()]) for one in (was, now)]
    assert verdicts[0] == verdicts[1]
    assert was["cases"]["tiny/quick/cuda"]["lacking"] == ["cuda"]
    run = run_file.read(tiny.path / "run.json")
    assert run.asked_tolerance == pytest.approx(0.07)
    reports = [one.text.partition("= gpugate =")[2].partition(", seed ")[0] for one in (live, again)]
    assert reports[0] == reports[1]
    assert "tiny/cpu, 32 items per step" in reports[0]
    assert f"nothing was measured: {tiny.path}/run.json, started {run.started_at}, was decided again" in again.text


def test_a_gpus_run_is_judged_where_there_is_no_gpu_and_no_torch(plain: TinyProject) -> None:
    ended = plain.run_apart("-v", "--perf-replay=run.json", "--perf-json=again.json")
    assert ended.status == 1
    assert outcomes(ended.text) == {
        "tiny/pass/cuda": ["PASSED"] * 4,
        "tiny/regressed/cuda": ["PASSED", "FAILED", "PASSED", "PASSED"],
        "tiny/no-baseline/cuda": ["PASSED"] * 4,
        "tiny/skipped/cuda": ["SKIPPED"] * 4,
        "tiny/failed/cuda": ["FAILED"] * 4,
        "tiny/unfinished/cuda": ["SKIPPED"] * 4,
        "tiny/newer/cuda": ["SKIPPED"] * 4,
    }
    assert "28 deselected" in ended.text  # the CPU's
    assert "torch was imported: False" in ended.text
    report = ended.text.partition("= gpugate =")[2]
    assert "machine     NVIDIA H200, driver 580.65.06" in report
    assert "yardsticks  matmul bf16 788 TFLOP/s" in report
    assert f"skipped\n  {NO_TENSORRT}\n      tiny/skipped/cuda\n  not in run.json\n      tiny/newer/cuda" in report
    assert "GpugateWarning: NO_BASELINE speedup of tiny/no-baseline/cuda: nothing is recorded" in ended.text
    check_no_traceback(ended.text)
    was, now = plain.json(), plain.json("again.json")
    assert now["environment"] == to_json(MACHINE) == was["environment"]
    assert {**was["cases"], "tiny/newer/cuda": now["cases"]["tiny/newer/cuda"]} == now["cases"]


def test_a_gate_fails_what_it_fails_live_and_skips_only_what_the_run_never_had(plain: TinyProject) -> None:
    lenient = plain.run("-v", "--perf-replay=run.json", "-k", "no-baseline or skipped or newer")
    strict = plain.run("-v", "--perf-replay=run.json", "--gate", "-k", "no-baseline or skipped or newer or unfinished")
    assert (lenient.status, strict.status) == (0, 1)
    assert outcomes(strict.text) == {
        "tiny/no-baseline/cuda": ["PASSED", "FAILED", "FAILED", "PASSED"],
        "tiny/skipped/cuda": ["FAILED"] * 4,
        "tiny/unfinished/cuda": ["FAILED"] * 4,
        "tiny/newer/cuda": ["SKIPPED"] * 4,
    }
    assert f"tiny/skipped/cuda was not measured: {NO_TENSORRT}" in strict.text
    select = ("-k", "pass or skipped", "--gate", "--perf-replay=run.json", "--perf-json=again.json")
    assert plain.run(*select, "--allow-missing=nvdec").status == 1
    assert plain.run(*select, "--allow-missing=tensorrt").status == 0
    assert (plain.json()["gate"], plain.json("again.json")["gate"]) == (False, True)


def test_a_gate_on_nothing_is_not_green(plain: TinyProject) -> None:
    result = plain.run("--perf-replay=run.json", "-k", "newer", "--gate")
    assert result.status == 1
    assert f"ERROR: the gate judged nothing: select cases that were measured in {plain.path}/run.json" in result.text
    assert plain.run("--perf-replay=run.json", "-k", "newer").status == 0


def test_an_interrupted_run_is_decided_as_far_as_it_goes_and_is_no_green_gate(plain: TinyProject) -> None:
    stored(plain.path / "run.json", case("pass"), case("unfinished", None), interrupted=True)
    lenient, strict = (plain.run("-v", "--perf-replay=run.json", "-k", "pass", *more) for more in ([], ["--gate"]))
    assert (lenient.status, strict.status) == (0, 1)
    assert outcomes(lenient.text) == outcomes(strict.text) == {"tiny/pass/cuda": ["PASSED"] * 4}
    sentence = f"ERROR: {plain.path}/run.json was interrupted: what it did not reach is no pass, measure again"
    assert sentence in strict.text
    assert "ERROR" not in lenient.text
    everything = plain.run("-v", "-rs", "--perf-replay=run.json")
    assert "not finished in run.json, which was interrupted" in everything.text
    for text in (lenient.text, everything.text):
        assert "interrupted" in text.partition("= gpugate =")[2].partition("1 measured (1 PASS)")[0]
    assert "interrupted; not finished: tiny/unfinished/cuda" in everything.text


def test_what_the_catalogue_no_longer_has_is_told(plain: TinyProject) -> None:
    stored(plain.path / "run.json", case("pass"), case("gone", 2.0))
    result = plain.run("--perf-replay=run.json")
    assert result.status == 0
    assert "no longer in the catalogue, so that no test judges it: tiny/gone/cuda" in result.text


def test_kinds_of_device_are_those_of_the_run(plain: TinyProject) -> None:
    on_two_cores = replace(MACHINE, device_kind="cpu")
    no_gpu = case("skipped", None, skipped="needs a CUDA GPU")
    stored(plain.path / "run.json", case("pass", kind="cpu"), environment=on_two_cores)
    assert "cuda" not in plain.run("-v", "--perf-replay=run.json").text
    stored(plain.path / "run.json", case("pass", kind="cpu"), no_gpu, environment=on_two_cores)
    both = outcomes(plain.run("-v", "--perf-replay=run.json").text)
    assert (both["tiny/pass/cpu"], both["tiny/skipped/cuda"]) == (["PASSED"] * 4, ["SKIPPED"] * 4)


def test_a_tighter_rule_would_have_fired_and_the_report_says_that_it_is_below_the_floor(plain: TinyProject) -> None:
    noisy = Remembered(*[History(3.0, 0.02, 30.0, 10.0, 0.001, 5)] * 2, "exact")
    stored(plain.path / "run.json", case("pass", 2.98), case("newer", 2.99, remembered=noisy))
    assert plain.run("--perf-replay=run.json").status == 0
    fired = plain.run("--perf-replay=run.json", "--perf-tolerance=0.3", "--perf-json=again.json")
    assert fired.status == 1
    assert speedup(plain, "again.json", "tiny/pass/cuda") == Outcome.REGRESSED
    below = "decided with a tolerance of 0.3 %, below the 8 % that the machine resolves for tiny/newer/cuda (2 cases"
    assert fired.text.count("decided with a tolerance") == fired.text.count(below) == 1
    loose = plain.run("--perf-replay=again.json", "--perf-tolerance=8")
    assert loose.status == 0
    assert "decided with a tolerance" not in loose.text
    assert plain.run("--perf-replay=again.json").status == 1, "the tolerance that was asked for is stored"


@pytest.mark.parametrize(("option", "sentence"), REFUSED.items())
def test_options_that_contradict_are_one_sentence(plain: TinyProject, option: str, sentence: str) -> None:
    before = plain.files()
    result = plain.run("--perf-replay=run.json", option.format(here=plain.path.name))
    assert result.status == pytest.ExitCode.USAGE_ERROR
    (said,) = [line for line in result.text.splitlines() if line.startswith("ERROR: ")]
    assert sentence in said
    check_no_traceback(result.text)
    assert plain.files() == before


def test_a_tolerance_is_nothing_to_record(tiny: TinyProject) -> None:
    result = tiny.run("--update-baselines", "--perf-tolerance=3")
    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --perf-tolerance judges and --update-baselines records: run one after the other" in result.text


BAD_FILES = {
    "missing": (None, "cannot be read (No such file or directory): give a file that --perf-json wrote"),
    "truncated": (lambda text: text[:2000], "cannot be used because it is cut off or not JSON (line "),
    "empty": (lambda text: "", "cannot be used because it is cut off or not JSON (line 1, column 1"),
    "no JSON": (lambda text: "%PDF-1.7", "cannot be used because it is cut off or not JSON (line 1"),
    "no run": (lambda text: '{"format": "gpugate-trust"}', "is a 'gpugate-trust' file, not a 'gpugate-run' one: give"),
    "endless number": (lambda text: f'{{"a": {"1" * 5000}}}', "it is not ours (a number of thousands of digits)"),
    "newer": (
        lambda text: text.replace('"format_version": 7', '"format_version": 99'),
        "was written by a newer gpugate (format 99, this one reads up to 7): upgrade gpugate or measure again",
    ),
    "older": (
        lambda text: text.replace('"format_version": 7', '"format_version": 2'),
        "was written by an older gpugate (format 2, this one reads 7): measure again",
    ),
    "other version": (
        lambda text: text.replace('"gpugate": "0.1.0"', '"gpugate": "0.0.9"'),
        "was decided by gpugate 0.0.9 and this is gpugate 0.1.0, whose rules may be others",
    ),
    "no version": (
        lambda text: text.replace('"gpugate": "0.1.0"', '"numpy": "2.0"'),
        "was decided by gpugate of no known version and this is gpugate 0.1.0",
    ),
    "no time": (
        lambda text: text.replace("03:04:05+00:00", "03:04:05"),
        "started_at is '2030-01-02T03:04:05', not an ISO 8601 time with the UTC offset",
    ),
    "another case": (
        lambda text: text.replace('"case_id": "tiny/pass/cuda"', '"case_id": "tiny/other/cuda"', 1),
        "cases.tiny/pass/cuda is of the case 'tiny/other/cuda'",
    ),
    "no promise": (
        lambda text: json.dumps(without_promise(json.loads(text))),
        "cases.tiny/pass/cuda was measured and has no promise",
    ),
    "undecidable": (
        lambda text: text.replace('"kernel_launches": 1.0', '"kernels_launched": 1.0'),
        "tiny/pass/cuda of 2030-01-02T03:04:05+00:00 cannot be decided (KeyError: 'kernel_launches'): measure again",
    ),
}


def without_promise(document: dict) -> dict:
    document["cases"]["tiny/pass/cuda"]["promise"] = None
    return document


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_used_is_one_sentence_and_stays(plain: TinyProject, name: str) -> None:
    damage, sentence = BAD_FILES[name]
    path = plain.path / "run.json"
    stored(path, case("pass", promise=replace(PROMISE, contract=Contract(limits=(Limit("kernels", at_most=58),)))))
    text = path.read_text()
    path.unlink() if damage is None else path.write_text(damage(text))
    before = plain.files()
    result = plain.run("--perf-replay=run.json", "--perf-json=again.json")
    assert result.status == pytest.ExitCode.USAGE_ERROR
    (said,) = [line for line in result.text.splitlines() if line.startswith("ERROR: ")]
    assert sentence in said
    assert name == "undecidable" or str(path) in said
    check_no_traceback(result.text)
    assert plain.files() == before


# --- a live run -------------------------------------------------------------------------------------------------------


def test_a_tolerance_below_what_the_machine_resolves_is_refused_before_anything_is_measured(tiny: TinyProject) -> None:
    recorded = tiny.run("--perf-device=cpu", "--update-baselines", "--perf-processes=1")
    assert recorded.status == 0, recorded.text
    tiny.pretend_five_processes()
    tiny.workload(UNBUILDABLE)
    before = tiny.files()
    refused = tiny.run("--perf-tolerance=0.01", "--perf-device=cpu", "--perf-json=run.json")
    assert refused.status == pytest.ExitCode.USAGE_ERROR
    (said,) = [line for line in refused.text.splitlines() if line.startswith("ERROR: ")]
    assert "--perf-tolerance is 0.01 %, below the " in said
    assert "that this machine resolves for tiny/quick/cpu: ask for " in said
    assert tiny.files() == before
    smallest = said.partition("ask for ")[2].split()[0]
    tiny.workload()
    enough = tiny.run(f"--perf-tolerance={smallest}", "-k", "speedup", "--perf-device=cpu", "--perf-json=run.json")
    assert enough.status in (0, 1)
    assert tiny.json()["asked_tolerance"] == pytest.approx(float(smallest) / 100)
    tiny.run("--perf-tolerance=50", "-k", "speedup", "--perf-device=cpu", "--perf-json=run.json")
    assert re.search(r"the recorded \d\.\d\dx -50 %", tiny.verdict("speedup")["reason"])


def test_a_tolerance_is_free_where_nothing_is_recorded(tiny: TinyProject) -> None:
    assert tiny.run("--perf-tolerance=0.01", "-k", "speedup", "--perf-device=cpu").status == 0
