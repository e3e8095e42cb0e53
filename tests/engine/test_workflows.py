"""The workflows: properties that the linters of `make lint` do not check, and their scripts, run with stand-ins."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt  # a part of rich's requirements

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra dev brings")

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PATHS}
WORKFLOWS: dict[str, dict[Any, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
NIGHTLY = WORKFLOWS["nightly-gpu.yml"]
COMPARE = WORKFLOWS["compare.yml"]
DUETS, COMMENT = (COMPARE["jobs"].get(name, {"steps": []}) for name in ("compare", "comment"))
GATE, MERGE = (NIGHTLY["jobs"][name] for name in ("gate", "merge"))
STEPS, MERGE_STEPS = ({step["name"]: step for step in job["steps"] if "name" in step} for job in (GATE, MERGE))
TRIGGERS = True  # YAML 1.1 reads the key `on` so


def jobs() -> list[dict[str, Any]]:
    return [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs() for step in job["steps"]]


def test_all_workflows_are_there() -> None:
    assert sorted(WORKFLOWS) == ["ci.yml", "compare.yml", "nightly-gpu.yml"]


@pytest.mark.parametrize("name", TEXTS)
def test_every_action_is_pinned_to_a_commit_with_its_version(name: str) -> None:
    uses = re.findall(r"uses: *(.*)", TEXTS[name])
    assert uses
    assert [one for one in uses if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


def test_one_action_has_one_commit_everywhere() -> None:
    pins = {step["uses"] for step in steps() if "uses" in step}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


def test_a_job_may_read_the_repository_and_nothing_else() -> None:
    """Except for the job that comments, which reads no code."""
    assert all(workflow["permissions"] == {} for workflow in WORKFLOWS.values())
    assert COMMENT["permissions"] == {"pull-requests": "write"}
    assert [step for step in COMMENT["steps"] if "uses" in step] == []
    others = [job for job in jobs() if job != COMMENT]
    assert all(job["permissions"] == {"contents": "read"} for job in others)
    checkouts = [step for job in others for step in job["steps"] if "actions/checkout@" in step.get("uses", "")]
    assert len(checkouts) == len(others)
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("name", TEXTS)
def test_no_secret_is_asked_for(name: str) -> None:
    assert "secrets" not in TEXTS[name]
    assert TEXTS[name].count("github.token") == (2 if name == "compare.yml" else 0)


def test_no_script_is_made_of_what_somebody_typed() -> None:
    assert [step["run"] for step in steps() if "${{" in step.get("run", "")] == []


def test_nothing_runs_twice_at_once_nor_for_ever() -> None:
    assert all(workflow["concurrency"]["group"] for workflow in WORKFLOWS.values())
    assert NIGHTLY["concurrency"]["cancel-in-progress"] is False
    assert all(0 < job["timeout-minutes"] <= 360 for job in jobs())


def test_only_files_of_main_choose_a_runner_that_stays_and_the_settings_name_these_files() -> None:
    runners = {name: [job["runs-on"] for job in WORKFLOWS[name]["jobs"].values()] for name in WORKFLOWS}
    own = {name: one for name in WORKFLOWS for one in runners[name] if one != "ubuntu-24.04"}
    assert all(one in ("ubuntu-24.04", own.get(name)) for name in WORKFLOWS for one in runners[name])
    assert sorted(own) == ["compare.yml", "nightly-gpu.yml"]
    assert "pull_request" not in {trigger for name in own for trigger in WORKFLOWS[name][TRIGGERS]}
    declared = yaml.safe_load((ROOT / ".github/actionlint.yaml").read_text(encoding="utf-8"))
    labels = ["self-hosted", "linux", "x64", *declared["self-hosted-runner"]["labels"]]
    deploy = (ROOT / "deploy/README.md").read_text(encoding="utf-8")
    for name, runner in own.items():
        assert runner["labels"] == labels
        row = rf"\| `{runner['group']}` \| `OWNER/REPO/\.github/workflows/{name}@refs/heads/main` \|"
        assert re.search(row, deploy)
    assert len({runner["group"] for runner in own.values()}) == len(own)


def test_a_comparison_is_of_the_commit_that_was_labelled_and_approved() -> None:
    assert COMPARE[TRIGGERS] == {"pull_request_target": {"types": ["labeled"], "branches": ["main"]}}
    assert DUETS["if"] == "github.event.label.name == 'perf'"
    assert set(re.findall(r"pull_request\.head\.[\w.]+", TEXTS["compare.yml"])) == {"pull_request.head.sha"}
    assert "head_ref" not in TEXTS["compare.yml"]
    assert "${{ github.event.pull_request.head.sha }}" in COMPARE["run-name"]  # which the reviewers see
    environment = f"The environment `{DUETS['environment']}`"
    assert environment in (ROOT / "deploy/README.md").read_text(encoding="utf-8")


def test_the_base_alone_is_checked_out_and_its_engine_is_in_the_image(tmp_path: Path) -> None:
    (checkout,) = [step for step in DUETS["steps"] if "checkout" in step.get("uses", "")]
    assert checkout["with"] == {"ref": "${{ github.sha }}", "fetch-depth": 0, "persist-credentials": False}
    image = find_step(DUETS, "Image of the base")["run"]
    assert image.startswith("docker build --file deploy/Dockerfile --iidfile ")
    fetch, given = find_step(DUETS, "Fetch the commit of the label")["run"], {"TOKEN": "one", "HEAD": "1a2b"}
    given["GITHUB_SERVER_URL"] = "https://github.com"
    assert run_script(fetch, tmp_path, {"git": 'echo "$@" >> calls'}, **given).returncode == 0
    assert (tmp_path / "calls").read_text() == "fetch --quiet --no-tags origin 1a2b\n"  # neither a checkout nor a token


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
    names = ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "NIGHT", "NIGHTS", "HOME")
    files = {key: str(folder / key.lower()) for key in names}
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


def find_step(job: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in job["steps"] if step.get("name") == name)
    return found


def run_compare(folder: Path, docker: str) -> "subprocess.CompletedProcess[str]":
    (folder / "runner_temp").mkdir()
    (folder / "runner_temp/image").write_text("sha256:1a2b")
    programs = {"docker": f'printf "%s\\n" "$@" > arguments\n{docker}'}
    given = {"CONTAINER": "gpugate-compare-17", "GPU": "0", "GITHUB_WORKSPACE": "/checkout"}
    return run_script(find_step(DUETS, "Compare")["run"], folder, programs, BASE="base", HEAD="head", **given)


def test_the_code_of_a_pull_request_gets_no_network_no_token_and_no_folder_to_write(tmp_path: Path) -> None:
    assert run_compare(tmp_path, "exit 0").returncode == 0
    arguments = (tmp_path / "arguments").read_text().splitlines()
    options, command = arguments[: arguments.index("sha256:1a2b")], arguments[arguments.index("sha256:1a2b") + 1 :]
    assert command == ["bash", "/source/deploy/compare.sh", "base", "head"]
    pairs = list(pairwise(options))
    mounted = [word for option, word in pairs if option == "--mount"]
    assert mounted == ["type=bind,source=/checkout,target=/source,readonly"]
    assert {word.partition("=")[0] for option, word in pairs if option == "--env"} == {"PYTEST_ADDOPTS"}
    assert {
        ("--network", "none"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--user", f"{os.getuid()}:{os.getgid()}"),
    } <= set(pairs)
    assert {"--rm", "--read-only"} <= set(options)
    assert not {"--volume", "-v", "--privileged", "--env-file", "--volumes-from", "--ipc", "--pid"} & set(options)
    assert not {"container", "services"} & DUETS.keys()  # GitHub mounts its folders and Docker's socket there
    assert not any("cache" in step.get("uses", "") for step in steps())
    assert [step["if"] for step in DUETS["steps"] if "docker rm --force" in step.get("run", "")] == ["always()"]


def test_the_settings_of_a_pull_request_select_no_cases(tmp_path: Path) -> None:
    """The container reads the base's `addopts` in the place of those in a file of the pull request."""
    run_compare(tmp_path, "exit 0")
    (words,) = re.findall(r"^PYTEST_ADDOPTS=(.*)$", (tmp_path / "arguments").read_text(), re.MULTILINE)
    (base,) = re.findall(r'^addopts = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert words.endswith(f"-o addopts={base}")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -k nothing\n")
    (tmp_path / "test_slow.py").write_text("def test_slow(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:gpugate.plugin"]
    ended = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTEST_ADDOPTS": words}, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 1), (2, 2), (64, 0), (125, 125), (130, 130)])
def test_a_comparison_fails_unless_it_is_only_undecided(tmp_path: Path, status: int, expected: int) -> None:
    ended = run_compare(tmp_path, f"echo {{}}; echo a table >&2; exit {status}")
    assert ended.returncode == expected, ended.stderr
    assert ("::warning::" in ended.stdout) is (status == 64)
    kept = tmp_path / "runner_temp/comparison"
    assert [(kept / name).read_text() for name in ("compare.json", "compare.txt")] == ["{}\n", "a table\n"]
    table = base64.b64encode(b"a table\n").decode()
    assert (tmp_path / "github_output").read_text() == f"table={table}\n"


def test_the_output_of_a_container_is_limited_and_gives_the_runner_no_order(tmp_path: Path) -> None:
    flood = "yes | head -c 5000000 >&2; echo '::set-output name=table::it' >&2; exit 1"
    ended = run_compare(tmp_path, flood)
    stop, *_, start = [line for line in ended.stdout.splitlines() if line.startswith("::")]
    assert re.fullmatch(r"::stop-commands::[0-9a-f]{64}", stop)
    assert start == f"::{stop.removeprefix('::stop-commands::')}::"
    assert ended.returncode != 0
    assert (tmp_path / "runner_temp/comparison/compare.txt").stat().st_size <= 1_000_000
    assert (tmp_path / "github_output").stat().st_size < 50_000


GH = """
echo "$@" >> calls
case "$2" in
  --paginate) jq -r "$5" comments.json;;
  *) for word; do case "$word" in body=@*) cp "${word#body=@}" body;; esac; done;;
esac
"""
MARKED = {"body": "<!-- gpugate-compare -->\nolder", "user": {"login": "github-actions[bot]"}}


def run_comment(folder: Path, table: bytes = b"a table\n", comments: Any = ()) -> "subprocess.CompletedProcess[str]":
    (folder / "comments.json").write_text(json.dumps(list(comments)))
    given = {"REPOSITORY": "us/it", "RUN_URL": "https://run", "HEAD": "abc", "RESULT": "failure", "NUMBER": "7"}
    given["TABLE"] = base64.b64encode(table).decode()
    return run_script(find_step(COMMENT, "Comment")["run"], folder, {"gh": GH}, **given)


def test_the_comment_follows_a_comparison_and_reads_nothing_but_its_words() -> None:
    assert (COMMENT["needs"], COMMENT["runs-on"]) == ("compare", "ubuntu-24.04")
    assert COMMENT["if"] == """!cancelled() && contains(fromJSON('["success", "failure"]'), needs.compare.result)"""
    assert COMMENT["env"]["NUMBER"] == "${{ github.event.pull_request.number }}"
    assert COMMENT["env"]["TABLE"] == "${{ needs.compare.outputs.table }}"
    assert "download" not in str(COMMENT)  # no archive of another job is unpacked
    keep = find_step(DUETS, "Keep the comparison")
    assert (keep["if"], keep["with"]["path"]) == ("always()", "${{ runner.temp }}/comparison")


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
    assert body == "<!-- gpugate-compare -->\n[Comparison](https://run) of commit abc: failure.\n\n    a table\n"
    assert (first / "github_step_summary").read_text() == body


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, which gh has within")
@pytest.mark.parametrize(
    "table",
    [
        b"| a | b |\n|---|---|\n| @you | #12 us/it#3 GH-4 |\n\n# title\n- item\n",
        b"```\n@you\n~~~\n</code></pre><img src=//x>\n",
        b"![i](https://x) [l](//x) <a href=x>\n\n\n&#64;you\n",
        b"a\r@you\r\r\n@you\0\x0b@you\x1b]8;;https://x\x07\xe2\x80\xae\xff\n\t@you\n",
        b"\n\n   @you\n[a]: https://x\n-->\n",
        b"x\n" * 15_000,
        b"",
    ],
    ids=["table", "fence", "link", "control", "edge", "long", "empty"],
)
def test_the_words_of_a_stranger_are_one_block_of_code(tmp_path: Path, table: bytes) -> None:
    ended = run_comment(tmp_path, table)
    assert ended.returncode == 0, ended.stderr
    body = (tmp_path / "body").read_text(encoding="ascii")
    assert len(body) < 65_536  # GitHub takes no longer one
    kinds = [token.type for token in MarkdownIt().parse(body)]
    assert kinds == ["html_block", "paragraph_open", "inline", "paragraph_close", *["code_block"] * bool(table)]
    assert body.startswith("<!-- gpugate-compare -->\n[Comparison](https://run) of commit abc: failure.\n")


def test_what_is_no_table_is_no_comment(tmp_path: Path) -> None:
    script = find_step(COMMENT, "Comment")["run"]
    assert run_script(script, tmp_path, {"gh": GH}, TABLE="$(touch it)", NUMBER="7").returncode != 0
    assert not (tmp_path / "calls").exists()
    assert not (tmp_path / "it").exists()
