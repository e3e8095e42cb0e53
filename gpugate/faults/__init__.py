"""Faults for the optimized side: a gate that has never been red proves nothing."""
