"""The web page over files: what a run left, without a service."""
