"""Verbs from numbers to a verdict. Pure."""
