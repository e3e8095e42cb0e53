"""The console command `gpugate`, with a module or a folder for each of its commands."""
