"""The keeper: one process of a node that starts, warms and holds its sandboxes."""
