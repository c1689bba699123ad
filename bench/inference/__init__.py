"""What inference costs, and what it gives: see bench/README.md."""
