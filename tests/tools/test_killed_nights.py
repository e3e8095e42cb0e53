"""A kill of a shard and of a gate; `python -m tools.killed_nights` tries 238."""

import json
import subprocess
import sys
from collections import Counter

from tests.support.patience import HANGS_S
from tests.support.tiny_project import ROOT
from tools.killed_nights import Kill


def test_a_killed_process_loses_its_running_case_alone() -> None:
    kills = ("--shards=1", "--gates=1")
    command = [sys.executable, "-m", "tools.killed_nights", *kills]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * HANGS_S, check=False)
    assert ended.returncode == 0, ended.stderr
    found = [Kill(**json.loads(line)) for line in ended.stdout.splitlines()]
    assert Counter(kill.killed for kill in found) == {"shard": 1, "gate": 1}
    assert all(kill.lost <= 1 for kill in found)
