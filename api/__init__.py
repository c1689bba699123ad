"""The Starlette ingress and the maintenance duties that run with it."""
