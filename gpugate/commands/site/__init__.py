"""`gpugate site`: the trend of each case as a page of charts."""
