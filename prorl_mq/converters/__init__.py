"""From our trajectories to what trainers take: pure functions to plain dictionaries, without any trainer's package."""
