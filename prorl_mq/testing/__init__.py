"""Stand-ins for what the service needs from outside: for its own tests, and for those of handler authors."""
