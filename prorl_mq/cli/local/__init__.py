"""The service on one machine, as `up`, `demo` and `dashboard` start it."""
