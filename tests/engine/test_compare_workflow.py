"""The comparison of a stranger's pull request: its container, its exit status, and the comment with its table.

The linters of `make lint` read the workflow; here its scripts run with stand-ins for docker, gh and gpugate.
"""

import argparse
import base64
import json
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from markdown_it import MarkdownIt  # a part of rich's requirements

from gpugate.commands.compare import Comparison, add_arguments, document
from gpugate.judging.duet import judge_duet
from gpugate.store.version import Version
from tests.engine.judging.test_duet import CASE, measured, process
from tests.support.stand_ins import STEP, run_script, write_programs

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra dev brings")

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/compare.yml").read_text(encoding="utf-8"))
DUETS, COMMENT = WORKFLOW["jobs"]["compare"], WORKFLOW["jobs"]["comment"]
NEEDS_JQ = pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, which gh has within")


def run_step(folder: Path, job: dict[str, Any], name: str, **variables: str) -> "CompletedProcess[str]":
    (script,) = [step["run"] for step in job["steps"] if step.get("name") == name]
    return run_script(folder, *STEP, script, RUNNER_TEMP=str(folder), **variables)


def compare(folder: Path, docker: str) -> "CompletedProcess[str]":
    (folder / "image").write_text("sha256:1a2b")
    write_programs(folder, docker=f'printf "%s\\n" "$@" > arguments\n{docker}')
    variables = {"CONTAINER": "gpugate-compare-17", "GPU": "0", "BASE": "base", "HEAD": "head"}
    variables |= {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_WORKSPACE": "/checkout"}
    return run_step(folder, DUETS, "Compare", **variables)


def test_the_code_of_a_pull_request_gets_no_network_no_token_and_no_folder_to_write(tmp_path: Path) -> None:
    assert WORKFLOW[True] == {"pull_request_target": {"types": ["labeled"], "branches": ["main"]}}  # `on` in YAML 1.1
    (checkout,) = [step["with"] for step in DUETS["steps"] if "checkout" in step.get("uses", "")]
    assert checkout["ref"] == "${{ github.sha }}", "of main; the commit that was labelled is only fetched"
    assert set(re.findall(r"pull_request\.head\.\w+", json.dumps(WORKFLOW["jobs"]))) == {"pull_request.head.sha"}
    assert COMMENT["permissions"] == {"pull-requests": "write"}
    assert [step for step in COMMENT["steps"] if "uses" in step] == []  # it reads no code and unpacks no archive
    assert not {"container", "services"} & DUETS.keys()  # GitHub mounts its folders and Docker's socket there
    assert compare(tmp_path, "exit 0").returncode == 0
    options, _, command = (tmp_path / "arguments").read_text().partition("sha256:1a2b\n")
    assert f"--user\n{os.getuid()}:{os.getgid()}\n" in options
    assert command.split() == ["bash", "/source/deploy/compare.sh", "base", "head"]
    for words in ("--network none", "--cap-drop ALL", "--security-opt no-new-privileges", "--rm", "--read-only"):
        assert words.replace(" ", "\n") in options
    assert re.findall(r"--mount\n(.*)", options) == ["type=bind,source=/checkout,target=/source,readonly"]
    assert not re.search(r"^(-v|--volume|--privileged|--env-file|--ipc|--pid)", options.replace("--pids-", ""), re.M)
    # The container reads the base's `addopts` in the place of those in a file of the pull request.
    (settings,) = re.findall(r"--env\nPYTEST_ADDOPTS=(.*)", options)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -k nothing\n")
    (tmp_path / "test_slow.py").write_text("def test_slow(): pass\n")
    pytest_run = (sys.executable, "-m", "pytest", "-q", "-p", "no:gpugate.plugin")
    assert run_script(tmp_path, *pytest_run, PYTEST_ADDOPTS=settings).returncode == 0


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 1), (64, 0), (125, 125)])
def test_a_comparison_fails_unless_it_is_only_undecided(tmp_path: Path, status: int, expected: int) -> None:
    ended = compare(tmp_path, f"echo {{}}; echo a table >&2; exit {status}")
    assert ended.returncode == expected, ended.stderr
    assert [(tmp_path / f"comparison/compare.{end}").read_text() for end in ("json", "txt")] == ["{}\n", "a table\n"]
    assert (tmp_path / "output").read_text() == f"table={base64.b64encode(b'a table' + bytes([10])).decode()}\n"


def test_the_output_of_a_container_is_limited_and_gives_the_runner_no_order(tmp_path: Path) -> None:
    ended = compare(tmp_path, "yes | head -c 5000000 >&2; echo '::set-output name=table::it' >&2; exit 1")
    stop, *_, start = [line for line in ended.stdout.splitlines() if line.startswith("::")]
    assert re.fullmatch(r"::stop-commands::[0-9a-f]{64}", stop)
    assert start == f"::{stop.removeprefix('::stop-commands::')}::"
    assert ended.returncode != 0
    assert (tmp_path / "comparison/compare.txt").stat().st_size <= 1_000_000


@pytest.mark.parametrize(
    ("status", "milliseconds", "expected"),
    [(0, [10], 0), (1, [10, 10.5], 1), (130, None, 130), (125, [10], 64), (125, [10, 10.5], 1)],
)
def test_undecided_cases_alone_have_a_status_that_docker_has_not(
    tmp_path: Path, status: int, milliseconds: list[float] | None, expected: int
) -> None:
    """Docker has the status 125, too. `gpugate compare` runs in a copy of the sources."""
    for folder in ("home", "source/deploy"):
        (tmp_path / folder).mkdir(parents=True)
    script = Path(shutil.copy(ROOT / "deploy/compare.sh", tmp_path / "source/deploy"))
    duets = [judge_duet(CASE, [process(measured(10, head_ms))] * 3) for head_ms in milliseconds or []]
    compared = Comparison(Version("a", tmp_path), Version("b", tmp_path), [process(measured(10, 10))], duets, {})
    made = json.dumps(document(compared), indent=1)
    (tmp_path / "made.json").write_text(made)
    write = 'cp ../../made.json "$HOME/compare.json";' if milliseconds else ""
    write_programs(tmp_path, gpugate=f"pwd >&2; {write} exit {status}")
    ended = run_script(tmp_path, "bash", str(script), "base", "head", HOME=str(tmp_path / "home"))
    assert (ended.returncode, ended.stdout) == (expected, made if milliseconds else ""), ended.stderr
    assert ended.stderr.splitlines()[0] == str(tmp_path / "home/versions")


PROJECT = yaml.safe_load((ROOT / ".github/workflows/compare-project.yml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load((ROOT / "deploy/gitlab/compare.yml").read_text(encoding="utf-8"))[".gpugate-compare"]


@pytest.mark.parametrize(
    ("status", "outcome", "on_github", "on_gitlab"),
    [(0, "SAME", 0, 0), (1, "SLOWER", 1, 1), (2, "", 2, 2), (125, "SAME", 0, 125), (125, "SLOWER", 1, 1)],
)
def test_a_project_of_its_own_compares_with_its_options_and_its_status(
    tmp_path: Path, status: int, outcome: str, on_github: int, on_gitlab: int
) -> None:
    """GitLab lets the status 125 pass, with a warning."""
    write = f"""
    for word; do [ "$last" != --json ] || echo '"outcome": "{outcome}"' > "$word"; last="$word"; done
    printf '%s\\n' "$@" > arguments; echo a table; exit {status}
    """
    write_programs(tmp_path, gpugate=write, git="exit 0")
    options = "-k 'a or b'"
    (script,) = [step["run"] for step in PROJECT["jobs"]["compare"]["steps"] if step.get("id") == "compare"]
    variables = {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output"), "BASE": "main"}
    ended = run_script(tmp_path, *STEP, script, OPTIONS=options, **variables)
    assert ended.returncode == on_github, ended.stderr
    assert (tmp_path / "arguments").read_text().splitlines()[:5] == ["compare", "origin/main", "-k", "a or b", "--json"]
    assert (tmp_path / "output").read_text() == f"table={base64.b64encode(b'a table' + bytes([10])).decode()}\n"
    ended = run_script(tmp_path, *STEP, "\n".join(GITLAB["script"]), GPUGATE_OPTIONS=options)
    assert ended.returncode == on_gitlab, ended.stderr
    assert (tmp_path / "arguments").read_text().splitlines()[:4] == ["compare", "FETCH_HEAD", "-k", "a or b"]
    assert GITLAB["allow_failure"] == {"exit_codes": 125}
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.parse_args((tmp_path / "arguments").read_text().splitlines()[1:])  # options that the command has


def test_the_callers_of_the_how_to_give_what_the_templates_take() -> None:
    text = (ROOT / "docs/how-to.md").read_text(encoding="utf-8")
    github, gitlab = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    assert github["jobs"]["compare"]["with"].keys() == PROJECT[True]["workflow_call"]["inputs"].keys()
    assert github["jobs"]["compare"]["uses"].partition("@")[0].endswith("/.github/workflows/compare-project.yml")
    assert gitlab["compare"]["variables"].keys() <= GITLAB["variables"].keys()
    assert gitlab["compare"]["extends"] == ".gpugate-compare"


def test_both_workflows_comment_by_one_script() -> None:
    assert PROJECT["jobs"]["comment"]["steps"] == COMMENT["steps"]


GH = """
echo "$@" >> calls
case "$2" in
  --paginate) jq -r "$5" comments.json;;
  *) for word; do case "$word" in body=@*) cp "${word#body=@}" body;; esac; done;;
esac
"""
MARKED = {"body": "<!-- gpugate-compare -->\nolder", "user": {"login": "github-actions[bot]"}}


def comment(folder: Path, table: bytes, comments: Any = ()) -> str:
    """The body of the comment that the workflow makes of a table."""
    write_programs(folder, gh=GH)
    (folder / "comments.json").write_text(json.dumps(list(comments)))
    variables = {"REPOSITORY": "us/it", "RUN_URL": "https://run", "HEAD": "abc", "RESULT": "failure", "NUMBER": "7"}
    variables |= {"TABLE": base64.b64encode(table).decode(), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    ended = run_step(folder, COMMENT, "Comment", **variables)
    assert ended.returncode == 0, ended.stderr
    return (folder / "body").read_text(encoding="ascii")


@NEEDS_JQ
@pytest.mark.parametrize(("more", "call"), [([], "POST .*/issues/7/comments"), ([3], "PATCH .*/issues/comments/3")])
def test_the_first_table_is_a_new_comment_and_later_ones_replace_it(tmp_path: Path, more: Any, call: str) -> None:
    strangers = {**MARKED, "id": 1, "user": {"login": "mallory"}}
    other = {**MARKED, "id": 2, "body": "another bot's <!-- gpugate-compare -->"}
    body = comment(tmp_path, b"a table\n", [strangers, other, *({**MARKED, "id": number} for number in more)])
    assert re.search(f"--method {call} ", (tmp_path / "calls").read_text().splitlines()[-1])
    assert body == "<!-- gpugate-compare -->\n[Comparison](https://run) of commit abc: failure.\n\n    a table\n"
    assert (tmp_path / "summary").read_text() == body


@NEEDS_JQ
@pytest.mark.parametrize(
    "table",
    [
        b"| a | b |\n|---|---|\n| @you | #12 us/it#3 GH-4 |\n\n# title\n- item\n",
        b"```\n@you\n~~~\n</code></pre><img src=//x>\n\n\n&#64;you\n[a]: https://x\n-->\n",
        b"a\r@you\r\r\n@you\0\x0b@you\x1b]8;;https://x\x07\xe2\x80\xae\xff\n\t@you\n",
        b"x\n" * 15_000,
    ],
    ids=["table", "fence", "control", "long"],
)
def test_the_words_of_a_stranger_are_one_block_of_code(tmp_path: Path, table: bytes) -> None:
    body = comment(tmp_path, table)
    assert len(body) < 65_536  # GitHub takes no longer one
    kinds = [token.type for token in MarkdownIt().parse(body)]
    assert kinds == ["html_block", "paragraph_open", "inline", "paragraph_close", "code_block"]
