"""The layout of data in Redis: every key and every field of a hash, who owns it and when it goes."""
