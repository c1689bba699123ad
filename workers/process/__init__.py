"""A worker process: its loop, its slots, its leases and its commits."""
