"""The way out of a sandbox without a network: named hosts that its task lists, while RUN lasts."""
