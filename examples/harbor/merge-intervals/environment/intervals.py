"""Closed intervals of integers."""


def merge(intervals):
    """The same numbers in as few intervals as can be, in order."""
    merged = []
    for low, high in intervals:
        if merged and low < merged[-1][1]:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged
