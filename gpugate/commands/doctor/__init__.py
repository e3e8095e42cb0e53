"""`gpugate doctor`: examines this machine and its software, and reports whether a gate run here can be trusted."""
