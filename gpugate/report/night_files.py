"""What a night's directory holds. A module of its own, for who must not import what writes them."""

RUN = "run.json"  # everything that was measured, rewritten after every case
SUMMARY = "summary.md"  # one screen
JUNIT = "junit.xml"  # pytest's own
