#!/bin/sh
cat >/app/server.py <<'EOF'
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

counts = Counter()


class Handler(BaseHTTPRequestHandler):
    def say(self, code, text):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(str(text).encode())

    def do_POST(self):
        _, kind, *name = self.path.split("/")
        if kind != "hit" or len(name) != 1:
            return self.say(404, "no")
        counts[name[0]] += 1
        self.say(200, counts[name[0]])

    def do_GET(self):
        _, kind, *name = self.path.split("/")
        if kind != "count" or len(name) != 1:
            return self.say(404, "no")
        self.say(200, counts[name[0]])


ThreadingHTTPServer(("127.0.0.1", 8123), Handler).serve_forever()
EOF
