"""The compositing stage: the background behind the people is blurred."""
