"""Files that releases wrote, and the proof that this version reads them."""
