"""Whether a policy that is trained through the service learns, and whether it still does when processes are killed."""
