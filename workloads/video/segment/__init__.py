"""Segmentation: a network tells people from background."""
