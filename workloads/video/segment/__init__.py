"""The segmentation stage: a network separates people from background."""
