"""The encoding stage: composited frames become a file of video."""
