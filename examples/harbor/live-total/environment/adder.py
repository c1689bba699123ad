"""Adds up what it is sent."""

import socketserver

total = 0


class Adder(socketserver.StreamRequestHandler):
    def handle(self):
        global total
        for line in self.rfile:
            if line.strip() == b"total":
                self.wfile.write(b"%d\n" % total)
            elif line.strip():
                total += int(line)


socketserver.TCPServer.allow_reuse_address = True
with socketserver.TCPServer(("127.0.0.1", 8124), Adder) as server:
    server.serve_forever()
