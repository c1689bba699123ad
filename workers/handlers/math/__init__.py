"""Mathematics with an answer in a box."""
