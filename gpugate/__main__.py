"""`python -m gpugate`: the same as the console command `gpugate`."""

import sys

from gpugate.cli import main

if __name__ == "__main__":
    sys.exit(main())
