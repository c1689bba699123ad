"""HTTP routes, a file a resource."""
