"""Experiments on the engine itself, each run as `python -m tools.NAME`. They are not part of the wheel."""
