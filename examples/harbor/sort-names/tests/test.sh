#!/bin/sh
if printf 'Ada\nBarbara\nGrace\nalan\nedsger\n' | cmp -s - /app/sorted.txt; then
  echo 1 >/logs/verifier/reward.txt
else
  echo 0 >/logs/verifier/reward.txt
fi
