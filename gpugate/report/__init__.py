"""Words, tables and pictures of a run; nothing here decides anything."""
