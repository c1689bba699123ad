"""What the service measures of itself."""
