"""What a night's directory holds. A module of its own, for who must not import what writes them."""

RUN = "run.json"  # everything that was measured; until the end with the lines of its cases beside it
SUMMARY = "summary.md"  # one screen
JUNIT = "junit.xml"  # pytest's own
