"""Bytes that do not belong into a queue: small ones in Redis, large ones in files on shared storage.

`name` and `files` know nothing of Redis; `writing` and `reading` choose between both; `marks` finds what live keys
name.
"""
