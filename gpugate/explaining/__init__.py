"""The autopsy of a slower or wrong side: the parts of a step that take longer, and the likely cause in one sentence."""
