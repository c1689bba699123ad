"""Replicated mode on real servers: chains of them with Sentinels, killed, stopped, cut off and restarted."""
