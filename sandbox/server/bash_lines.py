"""The lines that bash is given: its set-up, a command, and the end of a command."""

from __future__ import annotations

# `quiet` hides prompts that the command has set, such as a virtual environment's; nothing is printed by either.
SET_UP = (
    "PS1= PS2= PS0= PROMPT_COMMAND=; set +o history +H; __prorl_quiet() {{ local s=$?; PS1= PS2= PS0=; "
    "unset PROMPT_COMMAND; case $- in *e*) return 0;; esac; return $s; }}; __prorl_done() {{ local s=$?; "
    'printf \'\\036%s;%s\\036\' "$1" "$s" >{tty}; case $- in *e*) return 0;; esac; return $s; }}; '
    "readonly -f __prorl_done __prorl_quiet\n"
)


def set_up(tty: str) -> bytes:
    return SET_UP.format(tty=tty).encode()


def command_line(command: str, tty: str) -> bytes:
    text = command.replace("\0", "").encode("utf-8", "surrogateescape").replace(b"'", b"'\\''")
    return b"eval '" + text + b"' <" + tty.encode() + b"; { __prorl_quiet; } 2>&-\n"


def done_line(nonce: bytes) -> bytes:
    """The empty line before it ends what a syntax error left open."""
    return b"\n{ __prorl_done " + nonce + b"; } 2>&-\n"


def mark(nonce: bytes) -> bytes:
    """The start of what `done_line` prints; the exit code and another such character follow."""
    return b"\x1e" + nonce + b";"
