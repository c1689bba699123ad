#!/bin/sh
cd /app && timeout 30 python3 -I /tests/check.py
