"""The direct path's keys: intakes, cancels by name, and the consumer groups of result streams."""
