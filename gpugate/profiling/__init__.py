"""Reports of Nsight Systems: what a profile of exactly the measured steps says, read with SQL from nsys's export."""
