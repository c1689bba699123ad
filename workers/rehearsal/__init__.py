"""Rehearses task families: real stages and sandboxes, with a policy that says what it is told to."""
