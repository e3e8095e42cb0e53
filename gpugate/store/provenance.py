"""Reading the provenance of a run from git, from the variables of a CI service and from the host."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from gpugate.results.provenance import Provenance
from gpugate.store.version import git, hash_changes

MACHINE_ID = Path("/etc/machine-id")
CONTAINER_VARIABLE = "GPUGATE_IMAGE_DIGEST"  # a container cannot read the digest of its own image
# The address of the job in GitLab, Buildkite, CircleCI and Jenkins. GitHub has three parts of it.
_JOB_VARIABLES = ("CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL")
_GITHUB_VARIABLES = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
# The branch in GitHub, for a pull request and otherwise, and in GitLab: CI services check a commit out, not a branch.
_BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
_SCHEMES = ("https", "http", "ssh", "git")
_SHORT_SSH = re.compile(r"([\w.-]+@[\w.-]+|[\w-]+(\.[\w-]+)+):[^/].*")  # `git@example.org:a.git`, `git@gitlab:a.git`
HASH_DIGITS = 12


def read_provenance(
    project: Path, ignored: Sequence[Path] = (), gpu_uuid: str | None = None, variables: Mapping[str, str] = os.environ
) -> Provenance:
    """Reads the provenance of the code in the folder `project`.

    Uncommitted changes of the files and below the folders `ignored` do not count: runs write their results there.
    """
    commit = git(project, "rev-parse", "--verify", "--quiet", "HEAD")
    remote = git(project, "remote", "get-url", "origin") if commit else None
    return Provenance(
        repository=None if remote is None else remote_address(remote),
        commit=commit,
        changes=hash_changes(project, ignored=ignored) if commit else None,
        branch=_first(variables, _BRANCH_VARIABLES)
        or (git(project, "branch", "--show-current") if commit else None)
        or None,
        ci_url=_ci_url(variables),
        host=_hash_host(),
        gpu_uuid=gpu_uuid,
        container=_first(variables, [CONTAINER_VARIABLE]),
    )


def remote_address(text: str) -> str | None:
    """Removes user, password and query from an address such as `https://user:token@example.org/a.git`.

    None for anything else, such as a folder, whose path says nothing on another machine.
    """
    try:
        parts = urlsplit(text)
    except ValueError:  # of brackets that are no IPv6 address
        return None
    if parts.scheme in _SCHEMES and parts.netloc:
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return text if _SHORT_SSH.fullmatch(text) else None


def _ci_url(variables: Mapping[str, str]) -> str | None:
    server, repository, run = (variables.get(name) for name in _GITHUB_VARIABLES)
    if server and repository and run:
        return f"{server}/{repository}/actions/runs/{run}"
    address = _first(variables, _JOB_VARIABLES)
    return None if address is None else remote_address(address)


def _first(variables: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((variables[name] for name in names if variables.get(name)), None)


def _hash_host() -> str:
    """Hashes the machine id, or the host's name where there is none: a stored run does not name its host."""
    try:
        identity = MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        identity = ""
    return hashlib.sha256((identity or platform.node()).encode()).hexdigest()[:HASH_DIGITS]
