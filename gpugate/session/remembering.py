"""Adding the run of this session to the store, and the lines about the cases that moved since the last run here."""

from __future__ import annotations

import logging
from contextlib import closing

from gpugate.errors import GpugateError
from gpugate.report.since_last_run import describe_moves
from gpugate.results.run import RunResult
from gpugate.session.options import Options
from gpugate.store.nights import night_of
from gpugate.store.store_url import hide_secrets

_LOG = logging.getLogger(__name__)
NOT_STORED = "warning: this run is not in the store"


def remember(run: RunResult, options: Options) -> list[str]:
    """Adds a run with measured cases to the store, and returns lines for the end of the session.

    No error of the store is one of the run: it is a warning. A run with a fault on purpose does not describe the
    program and is not added.
    """
    if options.store_url is None or run.mutated is not None:
        return []
    try:
        night = night_of(run, options.report_path.resolve().name if options.report_path else "")
        if not night.cases and not night.unfit:
            return []
        from gpugate.store.database import open_store  # which imports sqlalchemy: a session without cases does not

        with closing(open_store(options.store_url)) as store:
            before = store.read_night_before(night)
            store.add(night)
        return [] if before is None else describe_moves(before, night)
    except GpugateError as error:
        return [f"{NOT_STORED}: {error}"]
    except Exception as error:
        _LOG.debug("the store failed", exc_info=True)
        problem = hide_secrets(f"{type(error).__name__}: {error}".splitlines()[0], options.store_url)
        return [f"{NOT_STORED} ({problem}): give another --perf-store, or --perf-store off"]
