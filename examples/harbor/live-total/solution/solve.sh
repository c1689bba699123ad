#!/bin/sh
nohup setsid python3 /app/adder.py >/dev/null 2>&1 </dev/null &
python3 - <<'EOF'
import socket
import time

while True:
    try:
        with socket.create_connection(("127.0.0.1", 8124)) as server, open("/app/numbers.txt", "rb") as numbers:
            server.sendall(numbers.read() + b"total\n")
            server.recv(100)
        break
    except OSError:
        time.sleep(0.05)
EOF
