"""Files that are written and read again: runs, records, source hashes."""
