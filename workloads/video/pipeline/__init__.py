"""The whole pipeline: from a file of video to another one, through all stages."""
