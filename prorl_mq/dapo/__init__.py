"""Dynamic sampling: batches that are filled with groups that pass a filter, from a reservoir of prompts.

`request`, `flow`, `filters` and `report` are pure; `verbs` and `batches` speak to Redis.
"""
