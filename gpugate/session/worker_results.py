"""The results of pytest-xdist's workers: packed in each worker, and joined in the controller."""

from __future__ import annotations

import dataclasses
import json

from gpugate.results.run import RunResult
from gpugate.session.merging import join_provenance
from gpugate.store.codec import from_json, to_json
from gpugate.store.json_file import parse


def pack(run: RunResult) -> str:
    """The results of a worker as JSON, which xdist can send."""
    return json.dumps(to_json(run))


def unpack(packed: str) -> RunResult:
    return from_json(RunResult, parse(packed))


def join(so_far: RunResult | None, run: RunResult) -> RunResult:
    """The results of one more worker, joined with those of the workers before."""
    if so_far is None:
        return run
    cases = {**so_far.cases, **run.cases}
    return dataclasses.replace(
        so_far,
        cases=cases,
        yardsticks=[*so_far.yardsticks, *run.yardsticks],
        source_hashes={**so_far.source_hashes, **run.source_hashes},
        interrupted=so_far.interrupted or run.interrupted,
        problems=list(dict.fromkeys([*so_far.problems, *run.problems])),
        wall_s=max(so_far.wall_s, run.wall_s),
        provenance=join_provenance([one.provenance for one in (so_far, run) if one.provenance is not None]),
    )
