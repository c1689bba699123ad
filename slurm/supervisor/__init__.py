"""The supervisor of a deployment: `prorl-slurm scale`, and the same as a chain of jobs."""
