"""Container registries as the OCI distribution specification has them: names, logins, manifests, blobs."""
