"""Images of tasks: what is taken as one, how rows name them, and where they stand in a trajectory's ids."""
