"""Control groups for real: sandboxes in a virtual machine, where every kind of delegation can be had."""
