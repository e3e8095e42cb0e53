"""Parts that several workloads share: rings, prefetching, captured graphs, rewritten networks."""
