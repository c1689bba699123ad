"""Starts the server and asks it. Exit code 0: it does what it must."""

import subprocess
import sys
import time
import urllib.error
import urllib.request

ADDRESS = "http://127.0.0.1:8123"


def ask(method, path):
    request = urllib.request.Request(ADDRESS + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, ""


server = subprocess.Popen([sys.executable, "/app/server.py"])
try:
    end = time.monotonic() + 20
    while True:
        try:
            ask("GET", "/count/a")
            break
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                sys.exit("it does not answer")
            time.sleep(0.05)
    said = [
        ask("GET", "/count/a"),
        ask("POST", "/hit/a"),
        ask("POST", "/hit/a"),
        ask("POST", "/hit/b"),
        ask("GET", "/count/a"),
        ask("GET", "/count/b"),
        ask("GET", "/elsewhere"),
    ]
    sys.exit(said != [(200, "0"), (200, "1"), (200, "2"), (200, "1"), (200, "2"), (200, "1"), (404, "")])
finally:
    server.kill()
