"""The command `prorl-mq evaluate`."""
