"""Intervals, tolerances, and how many processes and nights they need. Pure."""
