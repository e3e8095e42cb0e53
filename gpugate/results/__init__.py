"""Nouns: measured, judged and explained results, as frozen values."""
