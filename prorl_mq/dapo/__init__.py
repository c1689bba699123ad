"""Old home of `filters` and `request`; it goes with the next release."""
