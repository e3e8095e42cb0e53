"""Registers the engine's plugin and the catalogue of workloads."""

from gpugate.catalogue import register_module

pytest_plugins = ["gpugate.plugin"]
register_module("workloads")
