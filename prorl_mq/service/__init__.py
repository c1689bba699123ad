"""Use cases, called by the API, the intake, the command line and the compatible routes."""
