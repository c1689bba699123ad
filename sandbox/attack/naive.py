"""The execution server without what an attack on the protocol meets, and with all else: the control of this attack.

It is made of the server's own text, each guard of which is there once, or the control is refused.
"""

from typing import Final

from sandbox.errors import SandboxError

GUARDS: Final = {  # each with what is there without it
    "it takes settings once": (
        '        if self._configured.is_set():\n            raise ValueError("configured already")\n', "",
    ),
    "a connection waits for no other one": (
        "another = self._acceptors.acquire(blocking=False) or self._start_acceptor()", "another = False",
    ),
    "frames have a limit": ("    if header_size > HEADER_LIMIT or payload_size > PAYLOAD_LIMIT:\n", "    if False:\n"),
    "nobody guesses what ends a command": ("nonce = os.urandom(12).hex().encode()", 'nonce = b"%d" % self.calls'),
    "it is process 1, and cannot be killed": (
        "serve(inherited(arguments[0]), (1,), (lambda: None) if bare else hide_and_seal)",
        "run_front(lambda: serve(inherited(arguments[0]), (os.getppid(),), lambda: None))",
    ),
}  # fmt: skip
ONCE, APART, LIMIT, UNGUESSED, FIRST = GUARDS
MEETS: Final = {  # by the attack's program
    "second_configure": (ONCE,), "half_frame": (APART,), "end_mark_forgery": (UNGUESSED,),
    "oversize_frame": (APART, LIMIT),  # either contains it
    "stop_server": (FIRST,), "kill_everything": (FIRST,),
}  # fmt: skip


def naive(program: str, server: bytes) -> bytes:
    """Raises `SandboxError` if a guard is not where it was."""
    text = server.decode()
    for what in MEETS[program]:
        guard, without = GUARDS[what]
        if text.count(guard) != 1:
            raise SandboxError(f"{program!r} has no control: of {what!r} there are {text.count(guard)}")
        text = text.replace(guard, without)
    return text.encode()
