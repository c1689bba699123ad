"""Each verb on a real server, whole states compared."""
