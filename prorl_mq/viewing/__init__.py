"""What people look at: one moment of the service, the batches and groups of a run, a trajectory in pages."""
