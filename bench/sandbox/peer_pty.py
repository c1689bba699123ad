"""A pseudo-terminal by ptyprocess, straight into a bash: the command that starts one is the argument."""

import sys

import ptyprocess

from bench.sandbox.peer_loop import serve, timed


class Terminal:
    """A bash without prompt, echo and line editing: nothing comes back but what is printed."""

    def __init__(self, argv: list[str]) -> None:
        self.process = ptyprocess.PtyProcess.spawn(argv, echo=False)
        self.number = 0
        self.process.write(b"PS1=; PS2=; stty -echo; echo REA''DY\n")
        self.read_until(b"READY")
        self.once()

    def read_until(self, mark: bytes) -> None:
        seen = b""
        while mark not in seen:
            seen += self.process.read(65536)

    def once(self) -> None:
        self.number += 1
        self.process.write(f"true; echo DO''NE$?:{self.number}:\n".encode())
        self.read_until(f"DONE0:{self.number}:".encode())


if __name__ == "__main__":
    terminal = Terminal(sys.argv[1:])
    serve(lambda count: timed(terminal.once, count))
    terminal.process.terminate(force=True)
