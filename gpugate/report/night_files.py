"""The names of the files of a night, for modules that must not import the writers of these files."""

RUN = "run.json"  # everything that was measured; until the end with the lines of its cases beside it
SUMMARY = "summary.md"  # one screen
JUNIT = "junit.xml"  # pytest's own
