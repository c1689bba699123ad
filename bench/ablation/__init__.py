"""What each part of the pipeline is worth: throughput with all of them, and without one at a time."""
