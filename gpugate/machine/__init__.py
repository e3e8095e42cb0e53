"""The machine: its device, software and packages."""
