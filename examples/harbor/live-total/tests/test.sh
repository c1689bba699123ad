#!/bin/sh
[ "$(cat /results/total.txt 2>/dev/null)" = 5050 ] && [ ! -e /app/mine ] \
  && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt
