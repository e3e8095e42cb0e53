"""`gpugate doctor`: what this machine is, what it has, and whether a gate run here can be trusted."""
