"""Layers of images: fetched into files by digest, unpacked into directories, merged into images."""
