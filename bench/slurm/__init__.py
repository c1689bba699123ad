"""What a cluster costs and yields: scale-out, faults, and how many consumers one Redis bears."""
