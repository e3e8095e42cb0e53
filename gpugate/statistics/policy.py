"""The numbers of processes that a verdict and a record need, and the smallest change that must be found."""

# Of a verdict: the session and two confirmations; after an undecided first process, the middle one decides.
# Of a record: the variations of all records are shrunk together, so that three processes alarm about as rarely as five.
DECIDING_PROCESSES = 3
SHARP = 0.05  # a gate that misses a slowdown of this share is blunt
MISS = 0.05  # the chance of missing a slowdown that a record or a duet is said to detect, and of a false alarm a night
