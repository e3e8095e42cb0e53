"""Compositing: the background is blurred behind the people."""
