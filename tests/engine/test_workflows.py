"""The workflows: properties that the linters of `make lint` do not check, and their scripts, run with stand-ins."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import _parser
from gpugate.commands.compare.report import Comparison, document
from gpugate.judging.duet import judge_duet
from gpugate.store.version import Version
from tests.engine.judging.test_duet import CASE, measured, process

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra dev brings")

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PATHS}
WORKFLOWS: dict[str, dict[Any, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
NIGHTLY = WORKFLOWS["nightly-gpu.yml"]
COMPARE, COMMENT = WORKFLOWS["compare.yml"], WORKFLOWS["compare-comment.yml"]
GATE, MERGE = (NIGHTLY["jobs"][name] for name in ("gate", "merge"))
STEPS, MERGE_STEPS = ({step["name"]: step for step in job["steps"] if "name" in step} for job in (GATE, MERGE))
TRIGGERS = True  # YAML 1.1 reads the key `on` so


def jobs() -> list[dict[str, Any]]:
    return [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs() for step in job["steps"]]


def test_all_workflows_are_there() -> None:
    assert sorted(WORKFLOWS) == ["ci.yml", "compare-comment.yml", "compare.yml", "nightly-gpu.yml"]


@pytest.mark.parametrize("name", TEXTS)
def test_every_action_is_pinned_to_a_commit_with_its_version(name: str) -> None:
    uses = re.findall(r"uses: *(.*)", TEXTS[name])
    assert bool(uses) is (name != "compare-comment.yml")  # which checks nothing out
    assert [one for one in uses if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


def test_one_action_has_one_commit_everywhere() -> None:
    pins = {step["uses"] for step in steps() if "uses" in step}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


def test_a_job_may_read_the_repository_and_nothing_else() -> None:
    """Except for the job that comments, which reads no code."""
    assert all(workflow["permissions"] == {} for workflow in WORKFLOWS.values())
    comment = COMMENT["jobs"]["comment"]
    assert comment["permissions"] == {"actions": "read", "pull-requests": "write"}
    others = [job for job in jobs() if job != comment]
    assert all(job["permissions"] == {"contents": "read"} for job in others)
    checkouts = [step for job in others for step in job["steps"] if "actions/checkout@" in step.get("uses", "")]
    assert len(checkouts) == len(others)
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("name", TEXTS)
def test_no_secret_is_asked_for(name: str) -> None:
    assert "secrets" not in TEXTS[name]
    assert ("github.token" in TEXTS[name]) is (name == "compare-comment.yml")


def test_no_script_is_made_of_what_somebody_typed() -> None:
    assert [step["run"] for step in steps() if "${{" in step.get("run", "")] == []


def test_nothing_runs_twice_at_once_nor_for_ever() -> None:
    assert all(workflow["concurrency"]["group"] for workflow in WORKFLOWS.values())
    assert NIGHTLY["concurrency"]["cancel-in-progress"] is False
    assert all(0 < job["timeout-minutes"] <= 360 for job in jobs())


def test_code_that_nobody_has_read_never_reaches_the_gpu() -> None:
    assert sorted(NIGHTLY[TRIGGERS]) == ["schedule", "workflow_dispatch"]
    assert COMPARE[TRIGGERS] == {"pull_request": {"types": ["labeled"]}}  # a later push has no label of its own
    assert COMPARE["jobs"]["compare"]["if"] == "github.event.label.name == 'perf'"
    assert [workflow for workflow in TEXTS if "pull_request_target" in TEXTS[workflow]] == []
    own = [
        name for name in WORKFLOWS if any("self-hosted" in job["runs-on"] for job in WORKFLOWS[name]["jobs"].values())
    ]
    assert own == ["compare.yml", "nightly-gpu.yml"]


def test_labels_of_our_own_are_declared() -> None:
    declared = yaml.safe_load((ROOT / ".github/actionlint.yaml").read_text(encoding="utf-8"))
    ours = set(NIGHTLY["jobs"]["gate"]["runs-on"]) - {"self-hosted", "linux", "x64"}
    assert COMPARE["jobs"]["compare"]["runs-on"] == NIGHTLY["jobs"]["gate"]["runs-on"]
    assert ours == set(declared["self-hosted-runner"]["labels"])


def test_a_shard_goes_doctor_gate_autopsy_profiles_artifact_and_the_night_merge_summary_artifact() -> None:
    doctor, gate, autopsy, profiles, keep = list(STEPS)[-5:]
    assert STEPS[doctor]["run"].startswith("gpugate doctor")
    assert "--gate" in STEPS[gate]["run"]
    assert STEPS[autopsy]["if"] == STEPS[profiles]["if"] == "failure() && steps.gate.outcome == 'failure'"
    assert "--nsys=" in STEPS[profiles]["run"]
    assert STEPS[profiles]["continue-on-error"] is True  # they decide nothing
    *_, download, merge, summary, keep_night = MERGE_STEPS
    assert (download, merge) == ("Download the shards", "Merge")
    always = [STEPS[keep], *(MERGE_STEPS[name] for name in (summary, keep_night))]
    assert all(step["if"].startswith("always()") for step in always)
    assert all(step["with"]["retention-days"] == 90 for step in (always[0], always[-1]))
    assert [name for name in STEPS if "--explain" in STEPS[name].get("run", "")] == [autopsy]


def test_steps_leave_the_job_time_to_tell() -> None:
    for job in (GATE, MERGE):
        limits = [step["timeout-minutes"] for step in job["steps"] if "timeout-minutes" in step]
        assert sum(limits) + 20 <= job["timeout-minutes"]  # the first night installs 5 GB


def test_a_red_shard_ends_no_other_one_and_all_are_merged_under_the_names_of_their_folders() -> None:
    assert GATE["strategy"]["fail-fast"] is False
    assert (MERGE["needs"], MERGE["if"]) == ("gate", "!cancelled()")
    kept, taken = STEPS["Keep the shard"]["with"], MERGE_STEPS["Download the shards"]["with"]
    assert (kept["path"], kept["overwrite"]) == ("${{ runner.temp }}/shards", True)
    assert (taken["path"], taken["merge-multiple"]) == ("${{ env.NIGHT }}/shards", True)
    assert kept["name"].startswith(taken["pattern"].rstrip("*"))
    shards = GATE["strategy"]["matrix"]["shard"]
    assert shards == list(range(1, len(shards) + 1))


def test_every_option_that_a_night_uses_exists() -> None:
    files = [*TEXTS.values(), *((ROOT / "deploy" / name).read_text() for name in ("Dockerfile", "slurm/nightly.sh"))]
    used = {
        word for text in files for word in re.findall(r"(?<!\S)(--(?:perf-[a-z]+|gate|explain|allow-missing))", text)
    }
    options = (ROOT / "gpugate/session/options.py").read_text(encoding="utf-8")
    assert {"--gate", "--explain", "--perf-report", "--allow-missing", "--perf-shard", "--perf-durations"} == used
    assert sorted(word for word in used if f'"{word}"' not in options) == []


def ran(name: str, folder: Path, **programs: str) -> "subprocess.CompletedProcess[str]":
    """A step of a shard or of the merge, see `run_script`."""
    return run_script({**MERGE_STEPS, **STEPS}[name]["run"], folder, programs)


def run_script(
    text: str, folder: Path, programs: dict[str, str], **variables: str
) -> "subprocess.CompletedProcess[str]":
    """A step's script as a runner runs it, in `folder`, with stand-ins for the programs that it calls."""
    for program, body in programs.items():
        path = folder / program
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    script = folder / "step.sh"
    script.write_text(text)
    files = {key: str(folder / key.lower()) for key in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY", "NIGHT", "NIGHTS", "HOME")}
    (folder / "runner_temp").mkdir(exist_ok=True)
    files["RUNNER_TEMP"] = str(folder / "runner_temp")
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "SELECT": "a or b", "ALLOW_MISSING": "nvenc", **files}
    given |= {"SHARD": "1", "SHARDS": "2", "DURATIONS": ""}
    run_ids = {"GITHUB_RUN_ID": "17", "GITHUB_RUN_ATTEMPT": "2"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    environment = {**given, **run_ids, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_night_has_a_directory_of_its_own(tmp_path: Path) -> None:
    assert ran("A directory for this night, beside those before", tmp_path).returncode == 0
    said = dict(line.split("=", 1) for line in (tmp_path / "github_env").read_text().splitlines())
    assert Path(said["NIGHT"]).is_dir()
    assert Path(said["NIGHT"]).parent == Path(said["NIGHTS"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-17-2", Path(said["NIGHT"]).name)


def test_a_shard_has_a_directory_of_its_own(tmp_path: Path) -> None:
    assert ran("A directory for this shard", tmp_path).returncode == 0
    assert (tmp_path / "github_env").read_text() == f"NIGHT={tmp_path}/runner_temp/shards/1\n"
    assert (tmp_path / "runner_temp/shards/1").is_dir()


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_status_of_the_merge_is_that_of_the_night(tmp_path: Path, status: int) -> None:
    for number in (1, 2):
        (tmp_path / f"night/shards/{number}").mkdir(parents=True)
    ended = ran("Merge", tmp_path, gpugate=f'echo "$@"; exit {status}')
    night = tmp_path / "night"
    assert (ended.returncode, ended.stdout) == (status, f"merge {night}/shards/1 {night}/shards/2 --output {night}\n")


@pytest.mark.parametrize("status", [0, 1])
def test_the_doctor_is_kept_and_stops_what_he_would_not_trust(tmp_path: Path, status: int) -> None:
    (tmp_path / "night").mkdir()
    assert ran("Doctor", tmp_path, gpugate=f"echo looked at it; exit {status}").returncode == status
    assert (tmp_path / "night/doctor.txt").read_text() == "looked at it\n"


@pytest.mark.parametrize("status", [0, 1, 2, 130])
def test_the_gates_status_is_the_steps(tmp_path: Path, status: int) -> None:
    ended = ran("Gate", tmp_path, pytest=f'for word; do echo "[$word]"; done; exit {status}', gpugate="exit 0")
    assert ended.returncode == status
    assert "[-k]\n[a or b]\n[--gate]\n[--allow-missing]\n[nvenc]\n[--perf-report]" in ended.stdout
    assert "[--perf-shard]\n[1/2]\n[--perf-durations]\n[]\n" in ended.stdout


@pytest.mark.parametrize("verdict", [0, 1, 2])
def test_a_gate_that_ended_with_0_is_green_only_by_the_verdict_of_its_night(tmp_path: Path, verdict: int) -> None:
    ended = ran("Gate", tmp_path, pytest="exit 0", gpugate=f'echo "$@"; exit {verdict}')
    assert (ended.returncode, ended.stdout) == (verdict, f"verdict {tmp_path}/night\n")


def test_an_autopsy_that_fails_fails_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / ".pytest_cache").mkdir()
    assert ran("Autopsy of what failed", tmp_path, pytest="echo the copy; exit 1").returncode == 1
    assert (tmp_path / "night/autopsy.txt").read_text() == "the copy\n"


def test_what_the_autopsy_sees_pass_is_profiled_nevertheless(tmp_path: Path) -> None:
    """Without --gate it may pass; pytest would then no longer know it as failed."""
    (tmp_path / "night").mkdir()
    failed = tmp_path / ".pytest_cache/v/cache/lastfailed"
    failed.parent.mkdir(parents=True)
    failed.write_text("of the gate")
    forgets = 'for word; do case "$word" in cache_dir=*) rm "${word#cache_dir=}/v/cache/lastfailed";; esac; done'
    ended = ran("Autopsy of what failed", tmp_path, pytest=forgets)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "runner_temp/autopsy-cache/v/cache/lastfailed").exists()
    assert failed.read_text() == "of the gate"
    assert "cache_dir" not in STEPS["Profiles of what failed"]["run"]


def test_the_summary_is_the_nights(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"night/shards/{number}").mkdir(parents=True)
        (tmp_path / f"night/shards/{number}/doctor.txt").write_text(f"looked at {number}\n")
    (tmp_path / "night/summary.md").write_text("### gate: all good\n")
    assert ran("Summary", tmp_path, gpugate='echo "$1 of nights"').returncode == 0
    said = (tmp_path / "github_step_summary").read_text()
    assert said.startswith("### gate: all good\n")
    assert "```text\nlooked at 1\nlooked at 2\n```" in said
    assert "```text\nhistory of nights\n```" in said


def test_a_night_without_a_shard_has_a_summary_too(tmp_path: Path) -> None:
    assert ran("Summary", tmp_path, gpugate="exit 2").returncode == 0
    assert (tmp_path / "github_step_summary").read_text().startswith("No shard was merged")


def find_step(workflow: dict[Any, Any], name: str) -> dict[str, Any]:
    (job,) = workflow["jobs"].values()
    found: dict[str, Any] = next(step for step in job["steps"] if step.get("name") == name)
    return found


def run_compare(folder: Path, gpugate: str) -> "subprocess.CompletedProcess[str]":
    (folder / "runner_temp/comparison").mkdir(parents=True)
    return run_script(find_step(COMPARE, "Compare")["run"], folder, {"gpugate": gpugate}, BASE="base", HEAD="head")


def test_a_pull_request_is_compared_with_the_commit_that_it_began_from(tmp_path: Path) -> None:
    ended = run_compare(tmp_path, 'echo "$@"')
    command, base, head, marker, gpu, *files = ended.stdout.split()
    assert (command, base, head, marker, gpu) == ("compare", "base", "head", "-m", "gpu")
    arguments = _parser(["compare"]).parse_args([command, base, head, marker, gpu, *files])
    assert not arguments.exact
    assert {path.parent for path in (arguments.json, arguments.markdown)} == {tmp_path / "runner_temp/comparison"}
    checkout = next(step for step in COMPARE["jobs"]["compare"]["steps"] if "checkout" in step.get("uses", ""))
    assert checkout["with"]["fetch-depth"] == 0


@pytest.mark.parametrize(
    ("status", "milliseconds", "expected"),
    [(0, [10], 0), (1, [10, 10.5], 1), (2, [10], 2), (130, [], 130), (125, [10], 0), (125, [10, 10.5], 125)],
)
def test_a_comparison_fails_unless_it_is_only_undecided(
    tmp_path: Path, status: int, milliseconds: list[float], expected: int
) -> None:
    duets = [judge_duet(CASE, [process(measured(10, head_ms))] * 2) for head_ms in milliseconds]
    compared = Comparison(Version("a", tmp_path), Version("b", tmp_path), [process(measured(10, 10))], duets, {})
    (tmp_path / "made.json").write_text(json.dumps(document(compared), indent=1))
    writes = f'cp made.json "$9"; echo "| a table |" > "${{11}}"; exit {status}'
    ended = run_compare(tmp_path, writes)
    assert ended.returncode == expected, ended.stderr
    assert ("::warning::" in ended.stdout) is (expected == 0 < status)
    assert (tmp_path / "github_step_summary").read_text() == "| a table |\n"


def test_a_comparison_is_kept_whatever_its_status() -> None:
    keep = find_step(COMPARE, "Keep the comparison")
    assert keep["if"] == "always()"
    assert keep["with"]["path"] == "${{ runner.temp }}/comparison"
    download = find_step(COMMENT, "Download the comparison")["run"]
    assert keep["with"]["name"] == "comparison-${{ github.run_attempt }}"
    assert '--name "comparison-$RUN_ATTEMPT" --dir comparison' in download


GH = """
echo "$@" >> calls
case "$2" in
  */pulls/*) echo abc;;
  --paginate) jq -r "$5" comments.json;;
  *) for word; do case "$word" in body=@*) cp "${word#body=@}" body;; esac; done;;
esac
"""
MARKED = {"body": "<!-- gpugate-compare -->\nolder", "user": {"login": "github-actions[bot]"}}


def run_comment(
    folder: Path, table: str | None = "| a |\n", number: str = "7\n", head: str = "abc", comments: Any = ()
) -> "subprocess.CompletedProcess[str]":
    (folder / "comparison").mkdir()
    (folder / "comparison/number").write_text(number)
    if table is not None:
        (folder / "comparison/compare.md").write_text(table)
    (folder / "comments.json").write_text(json.dumps(list(comments)))
    given = {"REPOSITORY": "us/it", "RUN_URL": "https://run", "HEAD_SHA": head, "CONCLUSION": "failure"}
    return run_script(find_step(COMMENT, "Comment")["run"], folder, {"gh": GH}, **given)


def test_the_comment_is_made_after_a_comparison_of_a_pull_request() -> None:
    assert COMMENT[TRIGGERS] == {"workflow_run": {"workflows": [COMPARE["name"]], "types": ["completed"]}}
    condition = " ".join(COMMENT["jobs"]["comment"]["if"].split())
    assert condition.startswith("github.event.workflow_run.event == 'pull_request' && ")
    assert """contains(fromJSON('["success", "failure"]'), github.event.workflow_run.conclusion)""" in condition
    assert [step for step in COMMENT["jobs"]["comment"]["steps"] if "uses" in step] == []


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, which gh has within")
def test_the_first_table_is_a_new_comment_and_later_ones_replace_it(tmp_path: Path) -> None:
    strangers = {**MARKED, "id": 1, "user": {"login": "mallory"}}
    other = {**MARKED, "id": 2, "body": "another bot's <!-- gpugate-compare -->"}
    first, later = tmp_path / "first", tmp_path / "later"
    for folder, comments in ((first, [strangers, other]), (later, [strangers, other, {**MARKED, "id": 3}])):
        folder.mkdir()
        ended = run_comment(folder, comments=comments)
        assert ended.returncode == 0, ended.stderr
    *_, created = (first / "calls").read_text().splitlines()
    assert created == "api --silent --method POST repos/us/it/issues/7/comments -F body=@comment.md"
    *_, changed = (later / "calls").read_text().splitlines()
    assert changed == "api --silent --method PATCH repos/us/it/issues/comments/3 -F body=@comment.md"
    body = (first / "body").read_text()
    assert body == "<!-- gpugate-compare -->\n| a |\n\nCommit abc, [failure](https://run).\n"


@pytest.mark.parametrize("number", ["", "7 8", "../7", "$(touch it)", "07", "7\n8", "9" * 30])
def test_what_is_no_number_of_a_pull_request_is_no_address(tmp_path: Path, number: str) -> None:
    ended = run_comment(tmp_path, number=number, head="another")
    assert ended.returncode == 1
    assert "::error::the artifact names no pull request" in ended.stdout
    assert not (tmp_path / "calls").exists()


def test_the_number_of_another_pull_request_gets_no_comment(tmp_path: Path) -> None:
    ended = run_comment(tmp_path, head="another")
    assert ended.returncode == 1
    assert "::error::the head of pull request 7 is not the compared another: label it again\n" in ended.stdout
    assert (tmp_path / "calls").read_text() == "api repos/us/it/pulls/7 --jq .head.sha\n"


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, which gh has within")
def test_the_table_of_a_stranger_is_text(tmp_path: Path) -> None:
    table = "### a -> b\n| x&lt;1 | $(touch it) `touch it` |\n<img src=//x> @you &#64;you ![i](https://x) #12 WWW.x\n"
    assert run_comment(tmp_path, table).returncode == 0
    body = (tmp_path / "body").read_text().split("\n\nCommit")[0].splitlines()[1:]
    assert body[:2] == ["### a -> b", "| x&lt;1 | $(touch it) `touch it` |"]
    assert not (tmp_path / "it").exists()
    space = "&#8203;"
    assert body[2] == (
        f"&lt;img src=//x> @{space}you &amp;#{space}64;you !&#91;i](https:{space}//x) #{space}12 WWW{space}.x"
    )


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, which gh has within")
@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (None, "gpugate compare gave no table ([failure](https://run))."),
        ("x" * 40_001, "The table is too long for a comment: see the artifact of [the run](https://run)."),
    ],
)
def test_what_is_no_table_or_too_long_is_a_sentence(tmp_path: Path, table: str | None, sentence: str) -> None:
    assert run_comment(tmp_path, table).returncode == 0
    assert (tmp_path / "body").read_text() == f"<!-- gpugate-compare -->\n{sentence}\n"
