"""`python -m tools.trust`: trials of duets on this machine, and a report of their alarms."""

import sys

from tools.trust.command import main

if __name__ == "__main__":
    sys.exit(main())
