"""Closed intervals of integers."""


def merge(intervals):
    """The same numbers in as few intervals as can be, in order."""
    merged = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged
