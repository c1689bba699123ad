"""A request's parts: references, parameters and bodies as values, and how a request waits."""
