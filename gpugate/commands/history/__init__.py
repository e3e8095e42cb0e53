"""`gpugate history`: what many nights say together of each case, and on which night a level changed."""
