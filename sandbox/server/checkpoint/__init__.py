"""A sandbox's state in one archive, which restores it in another sandbox of the same image.

These modules come into a sandbox as text, and are compiled when it is first marked: most sandboxes never are.
"""
