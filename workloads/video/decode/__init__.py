"""The decoding stage: a clip of H.264 or HEVC becomes frames."""
