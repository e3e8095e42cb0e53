"""Tests of the promises of every optimization. One measurement per parameter feeds all four tests."""


def test_outputs_match_the_baseline(workload, gate):
    gate(workload.equivalence)


def test_speedup_is_what_was_promised(workload, gate):
    gate(workload.speedup)


def test_throughput_is_what_it_was(workload, gate):
    gate(workload.throughput)


def test_the_optimization_engaged(workload, gate):
    gate(workload.counters)
