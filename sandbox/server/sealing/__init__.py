"""The filter of system calls that the server puts on itself and on what it starts."""
