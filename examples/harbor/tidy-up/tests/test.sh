#!/bin/sh
cd /app/project
found=$(find . -mindepth 1 | LC_ALL=C sort | tr '\n' ' ')
if [ "$found" = './docs ./docs/keep.txt ./run.sh ./src ./src/new_name.py ' ] && [ -x run.sh ] \
  && [ "$(cat src/new_name.py)" = 'print(1)' ]; then
  echo 1 >/logs/verifier/reward.txt
else
  echo 0 >/logs/verifier/reward.txt
fi
