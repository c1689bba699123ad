"""The parts of servers that are jobs: certificates, and the data of Redis."""
