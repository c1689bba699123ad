#!/bin/sh
export HOME=/tmp GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
cd /app
ok=1
printf '[server]\nport = 8080\n' | cmp -s - settings.ini || ok=0
[ "$(git show HEAD:settings.ini)" = "$(cat settings.ini)" ] || ok=0
[ "$(git ls-tree --name-only HEAD | tr '\n' ' ')" = 'run.py settings.ini ' ] || ok=0
[ -z "$(git status --porcelain)" ] || ok=0
[ "$(git log --format=%s | tail -n 4 | tr '\n' ,)" = 'say more,remove the draft,another port,first version,' ] || ok=0
echo $ok >/logs/verifier/reward.txt
