"""`python -m gpugate`: the same as the console command `gpugate`."""

import sys

from gpugate.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
