"""Programs that are run against hidden tests."""
