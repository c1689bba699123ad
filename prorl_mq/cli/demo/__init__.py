"""`prorl-mq demo`: a small model on the example tasks, with everything that it needs."""
