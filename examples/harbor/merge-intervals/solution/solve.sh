#!/bin/sh
set -e
cp "$(dirname "$0")/intervals.py" /app/intervals.py
