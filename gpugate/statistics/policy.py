"""The numbers of processes and nights that a verdict and a record need."""

ATTEMPTS = 3  # processes, this one included; after an undecided first one, the middle one decides
MIN_PROCESSES = 5  # recorded processes from which their variation is estimated
MIN_SITTINGS = 5  # recorded nights from which their variation is estimated
