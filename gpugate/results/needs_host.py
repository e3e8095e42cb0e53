"""The rule by which a case needs its host, so that no other case may run there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

# From this share of the time on, copies make a case need its host. It was chosen on results/h200/night, in which four
# GPUs of one host, each with 16 cores, measured side by side; the records are of hosts with one GPU each. The speedups
# of the 58 pipelines below the share differ from the records by 0.7 standard deviations of a process, in the median.
# Those of the 15 above it are 8 % smaller, in the median.
COPIES = 0.25


def needs_host(on_cpu: bool, on_host_clock: bool, copies: Iterable[float | None]) -> bool:
    """True for a case beside which no other may run on its host, where each GPU has cores of its own.

    On a CPU that is every case. On a GPU it is a pipeline, which is timed by the host's clock, one side of which copies
    for a share of COPIES of its time or more: copies share the host's memory and its bus with other cases. `copies` are
    the counters `copy_fraction` of the two sides; a pipeline whose copies were not counted, None, needs its host.
    """
    return on_cpu or (on_host_clock and any(share is None or share >= COPIES for share in copies))
