"""The number of processes that a verdict and a record need, and the chance of an error."""

DECIDING_PROCESSES = 3  # of a verdict, the middle one of them, and of a record: docs/trust.md has why
MISS = 0.05  # the chance of missing a slowdown that a record or a duet is said to detect, and of a false alarm a night
