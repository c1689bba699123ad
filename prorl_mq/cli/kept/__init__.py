"""Commands about what is kept when a trainer has acknowledged it: the archive, and files of samples."""
