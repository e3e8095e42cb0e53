"""One session of pytest: its options, its cases, its fresh processes and what it records."""
