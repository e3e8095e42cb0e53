"""The reliability of the gate on this machine: its rate of false alarms, and the slowdowns that it misses."""
