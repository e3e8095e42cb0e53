"""Makes the engine's plugin and the catalogue known; no ideas here."""

from gpugate.catalogue import register_module

pytest_plugins = ["gpugate.plugin"]
register_module("workloads")
