"""The preprocessing stage: frames become the network's inputs."""
