"""gpugate: does a GPU optimization still pay?"""

__version__ = "0.1.0"
