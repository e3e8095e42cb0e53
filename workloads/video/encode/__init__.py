"""Encoding: composited frames become a file of video."""
