"""From trajectories to the forms of trainers."""
