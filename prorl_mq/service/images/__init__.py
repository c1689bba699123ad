"""Images of tasks on their way into the service."""
