"""Preprocessing: frames become the network's inputs."""
