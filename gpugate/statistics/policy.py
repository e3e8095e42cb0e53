"""The numbers of processes that a verdict and a record need, and the smallest change that must be found."""

DECIDING_PROCESSES = 3  # of a verdict, the middle one of them, and of a record: docs/trust.md has why
SHARP = 0.05  # a gate that misses a slowdown of this share is blunt
MISS = 0.05  # the chance of missing a slowdown that a record or a duet is said to detect, and of a false alarm a night
