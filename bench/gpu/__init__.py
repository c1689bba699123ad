"""The service over a model that computes: overhead a turn, and the GPU's use with stages overlapped or not."""
