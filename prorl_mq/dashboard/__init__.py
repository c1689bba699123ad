"""rq-dashboard on this queue: a mirror of jobs and workers in RQ's own records, and the page that shows it.

The mirror is never read by the queue. It may lag, die or be deleted: it is made again from what the queue holds.
"""
