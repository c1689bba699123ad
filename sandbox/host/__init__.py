"""The host's processes, files and users, as the sandboxes' owner sees them."""
