"""A verdict is an outcome, the reasons for it and the next step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal

from gpugate.results.reason import Reason, ReasonCode, describe
from gpugate.units import NotFinite


class Outcome(str, Enum):
    """A judgement starts at UNDECIDED and moves only on evidence.

    The more severe outcome comes first: a verdict made of several judgements takes the first that occurs.
    """

    WRONG = "WRONG"  # outputs differ: fast and wrong is wrong
    NOT_ENGAGED = "NOT_ENGAGED"  # the optimization silently did not happen
    REGRESSED = "REGRESSED"
    ENV_INVALID = "ENV_INVALID"
    UNDECIDED = "UNDECIDED"  # too little evidence, such as an interval that crosses its limit
    NO_BASELINE = "NO_BASELINE"
    IMPROVED = "IMPROVED"
    PASS = "PASS"

    @classmethod
    def _missing_(cls, value: object) -> Outcome | None:
        return cls.UNDECIDED if value == "INCONCLUSIVE" else None  # the word of older runs


class NextStep(str, Enum):
    """The action that a verdict advises. A report words it, with the cases and the command of the session.

    A step of an older run that no rule advises any more is read as REPEAT.
    """

    REPEAT = "repeat"
    MEASURE_LONGER = "measure-longer"
    FREE_CORES = "free-cores"
    TRACE = "trace"
    RECORD = "record"
    FIND_COMMIT = "find-commit"
    ACCEPT = "accept"
    COOL_MACHINE = "cool-machine"
    RAISE_QUOTA = "raise-quota"
    USE_CUDA = "use-cuda"
    CHECK_SIZE = "check-size"
    DECLARE_ENGAGEMENT = "declare-engagement"

    @classmethod
    def _missing_(cls, value: object) -> NextStep | None:
        return cls.REPEAT if isinstance(value, str) and value.replace("-", "").isalpha() else None


SEVERITY = tuple(Outcome)
GOOD = frozenset((Outcome.PASS, Outcome.IMPROVED))
Check = Literal["equivalence", "speedup", "throughput", "counters", "knee"]
NOT_JUDGED = "not judged"
CASE_CHECKS: tuple[Check, ...] = ("equivalence", "speedup", "throughput", "counters")  # a knee is a sweep's


@dataclass(frozen=True)
class Verdict:
    """The answer of one check; `numbers` are the evidence for the outcome (JSON-ready, units in the names).

    The first of the `reasons` decided; the others are circumstances.
    """

    check: Check
    case_id: str
    outcome: Outcome = Outcome.UNDECIDED
    reasons: tuple[Reason, ...] = (Reason(ReasonCode.NOTHING_MEASURED),)
    next_step: NextStep | None = None
    numbers: Mapping[str, Annotated[float | str | None, NotFinite()]] = field(default_factory=dict)

    @property
    def code(self) -> ReasonCode:
        return self.reasons[0].code

    @property
    def reason(self) -> str:
        """The reason that decided, in one sentence."""
        return next(iter(describe(self.reasons, self.numbers)), "")

    @property
    def circumstances(self) -> tuple[str, ...]:
        """The other reasons, a sentence each; not that of a wall time which did not show the failure."""
        others = [one for one in self.reasons[1:] if not (self.bad and one.code is ReasonCode.WALL_AS_RECORDED)]
        return tuple(describe(others, self.numbers))

    @property
    def good(self) -> bool:
        return self.outcome in GOOD

    @property
    def bad(self) -> bool:
        """Fails in every mode; what is neither good nor bad fails only a gate."""
        return self.outcome in (Outcome.REGRESSED, Outcome.WRONG, Outcome.NOT_ENGAGED)

    @property
    def needs_autopsy(self) -> bool:
        """True for a failure, and for an alarm that is no failure for want of evidence: the cause is wanted of both."""
        return self.bad or self.code in (ReasonCode.SLOWER_THAN_RECORD, ReasonCode.NOT_CONFIRMED)


def order_verdicts(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The most severe ones first. Of equally severe ones the wall time stands last, since the others name the cause;
    one that a duet decided keeps its place."""

    def place(one: Verdict) -> tuple[int, bool]:
        return SEVERITY.index(one.outcome), one.check == "throughput" and one.code is not ReasonCode.CODE_SLOWER

    return sorted(verdicts, key=place)


def outcome_word(outcome: Outcome | None) -> str:
    """The outcome as a report has it; None: nothing was judged."""
    return NOT_JUDGED if outcome is None else outcome.value
