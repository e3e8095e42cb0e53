"""`gpugate compare`: two versions of the code, measured live and in turns."""
