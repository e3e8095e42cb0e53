"""One file for each revision; a revision that was released never changes."""
