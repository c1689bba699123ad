"""The home of Redis: keys, scripts, verbs and reads."""
