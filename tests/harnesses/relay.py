"""Stands inside a sandbox between a harness and its gateway, and hangs up in the middle of the first answer.

`python3 -c TEXT ADDRESS ARGV...`: starts ARGV, in which (as in the environment) ADDRESS has become the relay's.
"""

PROGRAM = r"""
import os, socket, subprocess, sys, threading
there, argv = sys.argv[1], sys.argv[2:]
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
here = "http://127.0.0.1:%d" % listener.getsockname()[1]
gateway = ("127.0.0.1", int(there.rpartition(":")[2]))
uncut = threading.Semaphore(1)

def pump(source, target, state, answers):
    try:
        while piece := source.recv(1 << 16):
            if answers and state["posted"] and uncut.acquire(blocking=False):
                target.sendall(piece[:200])
                open("/tmp/cut", "w").close()
                break
            state["posted"] = state["posted"] or piece.startswith(b"POST ")
            target.sendall(piece)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

def serve():
    while True:
        client, _ = listener.accept()
        server, state = socket.create_connection(gateway), {"posted": False}
        for ends in ((client, server, state, False), (server, client, state, True)):
            threading.Thread(target=pump, args=ends, daemon=True).start()

threading.Thread(target=serve, daemon=True).start()
turn = lambda text: text.replace(there, here)
sys.exit(subprocess.run([turn(word) for word in argv], env={k: turn(v) for k, v in os.environ.items()}).returncode)
"""
