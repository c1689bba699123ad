"""Short answers to questions of science, by rule or by judge."""
