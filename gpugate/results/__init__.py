"""Nouns: what was measured, judged and explained, as frozen values."""
