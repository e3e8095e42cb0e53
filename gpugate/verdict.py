"""Judging: pure functions from summaries and promises to a word with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal


class Outcome(str, Enum):
    """A judgement starts at INCONCLUSIVE and moves only on evidence."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    WRONG = "WRONG"  # outputs differ: fast and wrong is wrong
    NOT_ENGAGED = "NOT_ENGAGED"  # the optimization silently did not happen
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    ENV_INVALID = "ENV_INVALID"


Check = Literal["equivalence", "speedup", "throughput", "counters"]


@dataclass(frozen=True)
class Verdict:
    """A word, why, and what to do next. `numbers` is what the word rests on (JSON-ready, units in the names)."""

    check: Check
    case_id: str
    outcome: Outcome = Outcome.INCONCLUSIVE
    reason: str = "nothing was measured yet"
    next_step: str = ""
    numbers: dict[str, float | str | None] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.outcome in (Outcome.PASS, Outcome.IMPROVED)

    @property
    def bad(self) -> bool:
        return self.outcome in (Outcome.REGRESSED, Outcome.WRONG, Outcome.NOT_ENGAGED)
