"""The clip that the video workloads read: its scene, its frames and files of video."""
