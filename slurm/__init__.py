"""Stage workers as Slurm arrays."""
