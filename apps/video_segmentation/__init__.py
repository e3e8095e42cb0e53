"""The program `python -m apps.video_segmentation`, made of the video workloads."""
