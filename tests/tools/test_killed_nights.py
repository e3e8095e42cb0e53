"""A few kills of each kind; `python -m tools.killed_nights` has tried 288."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support.patience import HANGS_S
from tests.support.tiny_project import ROOT
from tools.killed_nights import DATA, ENDED, KILLS, Kill, page


def test_a_killed_process_loses_its_running_case_alone(tmp_path: Path) -> None:
    output = tmp_path / "kills.json"
    kills = ("--shards=1", "--workers=1", "--controllers=0", "--gates=1", f"--output={output}")
    command = [sys.executable, "-m", "tools.killed_nights", *kills]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * HANGS_S, check=False)
    assert ended.returncode == 0, ended.stderr
    found = [Kill(**kill) for kill in json.loads(output.read_text(encoding="utf-8"))["kills"]]
    assert Counter(kill.killed for kill in found if kill.killed != ENDED) == {"shard": 1, "worker": 1, "gate": 1}
    assert all(kill.lost <= (2 if kill.killed == ENDED else 1) for kill in found)
    assert output.with_suffix(".md").read_text(encoding="utf-8") == page(found, seed=1, has_ends=True)


def test_the_page_belongs_to_its_data() -> None:
    stored = json.loads(DATA.read_text(encoding="utf-8"))
    kills = [Kill(**kill) for kill in stored["kills"]]
    assert Counter(kill.killed for kill in kills if kill.killed != ENDED) == KILLS
    assert sum(KILLS.values()) == 288
    gates = Counter("without" in kill.during for kill in kills if kill.killed == "gate")
    assert gates == {True: 44, False: 44}
    assert all(kill.lost <= (2 if kill.killed in ("controller", ENDED) else 1) for kill in kills)
    assert DATA.with_suffix(".md").read_text(encoding="utf-8") == page(kills, stored["seed"], stored["has_ends"])
