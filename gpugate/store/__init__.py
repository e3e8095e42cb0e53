"""What is written to disk and read again: runs, records, source hashes."""
