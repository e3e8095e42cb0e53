"""Why a side is slower or wrong: where the time of a step went, and the likely cause in one sentence."""
