"""What is promised of backends, kept with a real vLLM on a CPU."""
