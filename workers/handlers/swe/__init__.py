"""Software engineering: a repository, an issue, and hidden tests."""
