#!/bin/sh
echo "$GREETING$MARK $WHOM" >"$PLACE/hello.txt"
