"""The kill of a gate; `python -m tools.killed_nights` tries 88."""

import json
import subprocess
import sys

from tests.support.patience import HANGS_S
from tests.support.tiny_project import ROOT


def test_a_killed_gate_keeps_its_finished_cases() -> None:
    command = [sys.executable, "-m", "tools.killed_nights", "--kills=1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * HANGS_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["verdict"] != 0
