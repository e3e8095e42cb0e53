"""`gpugate history`: the trend of each case over many nights, and the nights on which a level changed."""
