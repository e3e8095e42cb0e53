"""Profiles by Nsight Systems, Nsight Compute and PyTorch: taking and reading them."""
