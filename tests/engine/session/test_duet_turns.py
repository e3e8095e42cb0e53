"""Turns of two processes: made-up step times in this process, and small programs that speak the protocol."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.errors import CompareError
from gpugate.judging.duet import judge_duets, time_ratio
from gpugate.measurement import settings as settings_of_measurement
from gpugate.measurement.settings import Settings
from gpugate.results.duet import DuetOutcome, DuetProcess
from gpugate.session import duet_turns, socket_child
from gpugate.session.duet_side import PROTOCOL, read_tensors, write_tensors
from gpugate.session.duet_turns import BASE, HEAD, DistantSide, LivePair, SideProcess, TurnError
from gpugate.session.duets import DuetPlan
from gpugate.session.other_tree import Layout
from gpugate.workload import Case, Context, Optimization, Side, Size, Workload
from tests.conftest import TWO_CORES
from tests.support.patience import wait_until
from tests.support.tiny_project import _state

CPU = torch.device("cpu")
CASE_ID = "net/fast/cpu"
TENSORS = [
    torch.arange(6, dtype=torch.float32).reshape(2, 3),
    torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    torch.tensor(True),
    torch.empty(0, 4, dtype=torch.int64),
    torch.arange(8, dtype=torch.float64)[::2],
]


def a_case() -> Case:
    fast = Optimization("fast", lambda context: Side(abs), {"cpu": 1.0})
    sizes = {"cpu": Size(items=1, flops=1, bytes=1)}
    return Case(Workload("net", lambda context: Side(abs), lambda context, index: 0, sizes, (fast,)), fast, "cpu")


class FakeProcess(SideProcess):
    """Answers with made-up times and outputs; `log` has the requests to both processes, in order."""

    def __init__(self, version: str, step_ms: float, log: list[tuple[str, str]], output: torch.Tensor) -> None:
        self.version, self.step_ms, self.log, self.output = version, step_ms, log, output
        self.ended, self.group, self.problem = False, set(), ""
        self.fails: Callable[[], TurnError | None] = lambda: None
        self.live = 0

    def request(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.log.append((self.version, do))
        if do == "build":
            if (error := self.fails()) is not None:
                raise error
            self.live = 1
            cost = {"build_s": 1.0, "first_step_s": 0.5, "peak_bytes": 100}
            pipeline = {"stock_steps": 0, "works_ahead": False, "round_steps": 1}
            reply = {"name": f"fast of the {self.version}", "cost": cost, "pipeline": pipeline}
            if arguments["file"] is None:
                return reply
            if self.problem:
                return {**reply, "problem": self.problem}
            return {**reply, "forms": write_tensors(arguments["file"], [self.output])}
        if do == "close":
            self.live = 0
        return {
            "begin": {"forms": [], "seed": 7, "input_sets": 2},
            "block": {"step_ms": self.step_ms},
            "count": {"counters": {"kernels": 3.0 if self.version == BASE else 4.0}},
            "close": {},
        }[do]


class Fakes:
    """A pair of fake processes of which the head's output is 1 % larger and its step 5 % slower."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.log: list[tuple[str, str]] = []
        self.base = FakeProcess(BASE, 10.0, self.log, torch.ones(3))
        self.head = FakeProcess(HEAD, 10.5, self.log, torch.full((3,), 1.01))
        self.context = Context(CPU, 1, 0, tmp_path)
        self.pair = LivePair(DuetPlan(str(tmp_path), 1.0), [Layout()] * 2, "cpu", 300.0)
        monkeypatch.setattr(LivePair, "_start", lambda pair: {BASE: self.base, HEAD: self.head})
        monkeypatch.setitem(settings_of_measurement.WARM_UP_S, "cpu", 0.001)

    def measure(self, swapped: bool = False, budget_s: float = 60.0) -> DuetProcess:
        """Equal times end turns long before the budget; versions that are measured one after another use it up."""
        settings = Settings(budget_s=budget_s, duet=True)
        found, arrangement = self.pair.measure(a_case(), self.context, settings, swapped)
        return DuetProcess(swapped, TWO_CORES, (CASE_ID,), {CASE_ID: found}, apart={CASE_ID: arrangement})

    def builds(self) -> list[str]:
        return [version for version, do in self.log if do == "build"]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fakes:
    return Fakes(monkeypatch, tmp_path)


@pytest.mark.parametrize("swapped", [False, True])
def test_both_versions_are_measured_in_turns_as_one_process_measures_them(fakes: Fakes, swapped: bool) -> None:
    process = fakes.measure(swapped)
    found = process.measured[CASE_ID]
    assert time_ratio(found, swapped).median == pytest.approx(1.05)
    assert [build.reference_built_first for build in found.instances] == [True, False, True, False]
    assert found.stopped_because == "narrow"
    orders = [pair.reference_first for pair in found.instances[0].pairs]
    assert len(orders) >= 4
    assert all(first != second for first, second in pairwise(orders))
    assert found.differences[0].relative_l2 == pytest.approx(0.01 / 1.01 if swapped else 0.01, rel=1e-4)
    assert (found.reference_cost.peak_bytes, found.seed, found.input_sets) == (100, 7, 2)
    counted = {"base": 3.0, "head": 4.0}
    assert found.reference_counters == {"kernels": counted[HEAD if swapped else BASE]}
    assert process.apart == {CASE_ID: "in turns"}
    assert (fakes.base.live, fakes.head.live) == (0, 0)


@pytest.mark.parametrize("swapped", [False, True])
def test_where_both_do_not_fit_together_one_is_measured_after_the_other(fakes: Fakes, swapped: bool) -> None:
    for one, other in ((fakes.base, fakes.head), (fakes.head, fakes.base)):
        one.fails = lambda other=other: TurnError("too large", out_of_memory=True) if other.live else None  # type: ignore[misc]
    process = fakes.measure(swapped, budget_s=0.02)
    found = process.measured[CASE_ID]
    assert process.apart == {CASE_ID: "one after another"}
    assert time_ratio(found, swapped).median == pytest.approx(1.05)
    first, second = (HEAD, BASE) if swapped else (BASE, HEAD)
    assert fakes.builds()[2:] == [first, second, second, first]
    assert [build.reference_built_first for build in found.instances] == [True, False]
    assert all(len(build.pairs) >= 4 for build in found.instances)
    assert len(found.differences) == 1
    assert (fakes.base.live, fakes.head.live) == (0, 0)


def test_any_other_error_of_a_build_is_the_error_of_the_case(fakes: Fakes) -> None:
    fakes.head.fails = lambda: TurnError("fast of the head failed while being built: ValueError: no")
    with pytest.raises(TurnError, match="fast of the head failed while being built"):
        fakes.measure()
    assert fakes.base.live == 0


def test_outputs_that_cannot_be_compared_end_the_measurement(fakes: Fakes) -> None:
    fakes.head.problem = "it returned NaN or infinity"
    found = fakes.measure().measured[CASE_ID]
    assert (found.pairs, found.stopped_because) == ((), "outputs not comparable")
    assert found.differences[0].problem == "it returned NaN or infinity"


def test_two_pairs_of_processes_are_no_alarm_and_three_that_agree_are(fakes: Fakes) -> None:
    taken = [fakes.measure(), fakes.measure(swapped=True)]
    assert judge_duets(taken)[0][0].outcome is DuetOutcome.UNDECIDED
    (duet,), _ = judge_duets([*taken, fakes.measure()])
    assert duet.outcome is DuetOutcome.SLOWER


def test_tensors_keep_their_values_and_forms_in_a_file(tmp_path: Path) -> None:
    file = str(tmp_path / "made.npy")
    back = read_tensors(file, json.loads(json.dumps(write_tensors(file, TENSORS))))
    assert [one.dtype for one in back] == [one.dtype for one in TENSORS]
    assert all(torch.equal(one, other) for one, other in zip(back, TENSORS, strict=True))
    assert read_tensors(file, write_tensors(file, [])) == []


SPEAKER = """
import json, os, signal, socket, sys, time
orders = json.loads(sys.argv[1])
stream = socket.socket(fileno=orders["socket"]).makefile("rw")
def send(reply):
    stream.write(json.dumps(reply) + "\\n")
    stream.flush()
{before}
send({{"protocol": {protocol}, "gpugate": "0.0.9", "software": "a program"}})
for line in stream:
    request = json.loads(line)
    {then}
"""


@contextmanager
def speaking(then: str, *, before: str = "", protocol: int = PROTOCOL, limit_s: float = 60.0) -> Iterator[SideProcess]:
    script = SPEAKER.format(before=before, protocol=protocol, then=then)
    orders = {"version": BASE, "device": "cpu", "step_timeout_s": limit_s / duet_turns.LONGEST_SHARE}
    with ExitStack() as stack:
        yield SideProcess(stack, [sys.executable, "-I", "-S", "-c", script], Path.cwd(), orders)


def test_a_process_that_prints_disturbs_no_reply() -> None:
    with speaking("print('[1, 2', flush=True); os.write(2, b'{}\\n'); send(request)") as process:
        assert process.greet("") == "a program"
        assert process.request("block", steps=3) == {"do": "block", "steps": 3}


def test_one_of_two_processes_stands_still_while_the_other_answers() -> None:
    state = "send({'state': open(f'/proc/{request[\"of\"]}/stat').read().rpartition(')')[2].split()[0]})"
    with speaking(state) as one, speaking(state) as other:
        for process in (one, other):
            process.greet("")
        pids = [-min(one.group), -min(other.group)]
        one.other, other.other = other, one
        for asked, still in ((one, pids[1]), (other, pids[0])) * 3:
            wait_until(lambda asked=asked, still=still: asked.request("look", of=still)["state"] == "T")  # type: ignore[misc]
    assert [_state(pid)[0] for pid in pids] == ["X", "X"]


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process of the base was killed by SIGSEGV"),
        ("os._exit(7)", "the process of the base ended with status 7"),
        ("raise ValueError('no engine')", "the process of the base ended with status 1: ValueError: no engine"),
        # A child of the process has the socket, too.
        ("os.fork() and os._exit(7); time.sleep(3600)", "the process of the base ended with status 7"),
        ("os.close(orders['socket']); time.sleep(3600)", "the process of the base closed the socket of its requests"),
        ("time.sleep(3600)", "the process of the base did not answer within 1 s"),
        ("stream.write('{'); stream.flush(); time.sleep(3600)", "the process of the base did not answer within 1 s"),
    ],
)
def test_a_process_that_ends_or_hangs_is_an_error_with_the_reason(
    then: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_child, "CLOSING_S", 0.2)
    with speaking(then, limit_s=1.0) as process:
        process.greet("")
        with pytest.raises(TurnError) as raised:
            process.request("build")
        assert str(raised.value) == reason
        assert process.ended
        assert not raised.value.out_of_memory


def test_an_error_of_a_side_keeps_its_sentence_and_its_kind() -> None:
    with speaking("send({'error': 'no memory', 'out_of_memory': True})") as process:
        process.greet("")
        with pytest.raises(TurnError, match="no memory") as raised:
            process.request("build")
        assert raised.value.out_of_memory
        assert not process.ended


def test_another_protocol_is_refused_with_its_version() -> None:
    with speaking("", protocol=PROTOCOL + 1) as process, pytest.raises(CompareError) as raised:
        process.greet("")
    assert f"gpugate 0.0.9 of the base has protocol {PROTOCOL + 1} of duets, and this gpugate has" in str(raised.value)


def test_a_process_that_cannot_take_part_is_named_with_the_next_step() -> None:
    without = "sys.exit('gpugate 0.0.9 has no module gpugate.session.duet_side')"
    with speaking("", before=without) as process, pytest.raises(CompareError) as raised:
        process.greet("give another")
    cause = "gpugate 0.0.9 has no module gpugate.session.duet_side"
    assert str(raised.value) == f"the process of the base ended with status 1: {cause}: give another"


def test_a_side_without_a_process_needs_no_close(fakes: Fakes) -> None:
    side, _ = fakes.base.build(None, CPU)
    assert isinstance(side, DistantSide)
    fakes.base.ended = True
    side.close()
    assert ("base", "close") not in fakes.log
