"""One worker process's loop, in this process, on a real server."""
