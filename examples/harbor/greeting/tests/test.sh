#!/bin/sh
[ "$(cat "$PLACE/hello.txt")" = "$WANTED" ] && echo 1.0 >/logs/verifier/reward.txt || echo 0.0 >/logs/verifier/reward.txt
