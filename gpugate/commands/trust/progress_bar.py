"""The number of trials taken, and the time that the others will last, on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gpugate.commands.trust.plan import Plan, missing
from gpugate.store.json_file import parse

SPEED_OVER_S = 1800.0  # trials last for seconds, and not equally long
REFRESHES_PER_S = 1  # more would take time from what is measured


class ProgressBar:
    """A bar with the time left; one line per process where stderr is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=REFRESHES_PER_S,
            speed_estimate_period=SPEED_OVER_S,
        )
        self._task = self._bar.add_task("", total=None)
        self._seen_ns = 0

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begins(self, plan: Plan) -> None:
        """A new process is started."""
        self._bar.update(self._task, description=f"process {plan.process}")
        if not self._console.is_terminal:
            taken = sum(sum(of_case.values()) for of_case in plan.taken.values())
            self._console.print(f"process {plan.process}: {taken} trials so far", highlight=False)

    def watch(self, plan: Plan) -> None:
        """Shows what the process has written since; its file is read when it has changed, and not decoded."""
        path = Path(plan.output)
        if not self._console.is_terminal or not path.exists() or path.stat().st_mtime_ns == self._seen_ns:
            return
        self._seen_ns = path.stat().st_mtime_ns
        document: Any = parse(path.read_text(encoding="utf-8"))
        taken = sum(sum(plan.taken.get(case_id, {}).values()) for case_id in document["case_ids"])
        total = taken + sum(missing(plan, case_id) for case_id in document["case_ids"])
        self._bar.update(self._task, completed=taken + len(document["trials"]), total=total)
