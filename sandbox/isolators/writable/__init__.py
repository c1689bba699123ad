"""Directories of an image that a sandbox may write to: by copy-on-write where the machine can, else as copies."""
