"""Registers the engine's plugin and the catalogue of workloads."""

import os

from gpugate.catalogue import register_module

# Inductor otherwise compiles and loads a try of AVX2 and AVX-512 in each process that compiles: 11 s of its first
# compilation. The processor's flags name both, and every C++ compiler that builds torch's headers knows them.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

pytest_plugins = ["gpugate.plugin"]
register_module("workloads")
