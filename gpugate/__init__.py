"""gpugate: does a GPU optimization still pay?"""
