"""What of a workload may be given away."""
