"""The reliability of duets on this machine: their rate of false alarms, and the slowdowns that they miss."""
