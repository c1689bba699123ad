"""The gate against slower releases: counts of a short run beside those of the last release."""
