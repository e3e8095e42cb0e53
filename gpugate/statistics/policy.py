"""The numbers of processes and nights that a verdict and a record need."""

ATTEMPTS = 3  # processes, this one included, of which the middle one decides what the first one leaves open
MIN_PROCESSES = 5  # fresh processes that tell how much runs differ
MIN_SITTINGS = 5  # occasions that tell how much nights differ
