#!/bin/bash
set -e
find . -name '*.tmp' -delete
find . -mindepth 1 -type d -empty -delete
mv src/old_name.py src/new_name.py
chmod u+x run.sh
