"""The program `python -m apps.train`, made of the driving workload."""
