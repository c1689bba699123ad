"""The kinds of sandboxes: Apptainer, bubblewrap and a plain local process."""
