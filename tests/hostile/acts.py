"""Hostile tool calls, drawn from a seed: what an agent may do to its sandbox, its shell, its kernel and its files.

Each act ends by itself or is stopped within a second or two, and leaves no load behind it.
"""

# ruff: noqa: E501  (acts in one piece)

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

SOLUTION = "/workspace/solution.py"
BYTES = (
    "\\0\\0\\0\\2{}", "\\036", "\\377\\376\\200", '\\0\\0\\0\\020{"ok": true}\\n', "\\033[2J\\007", "\\r\\n\\0", "\\xed\\xa0\\x80",
    '\\0\\0\\0\\010"answer"', "\\177\\004\\003\\032", "[[[[[[[[", "\\0\\0\\0\\0", "\\377\\377\\377\\377",
)  # fmt: skip
PLACES = (
    SOLUTION, "/workspace", "/tmp", "/", "/proc/self/mem", "/proc/1/environ", "/dev/zero", "/dev/stdin", "/dev/tty",
    "/dev/null", "/workspace/fifo", "/workspace/loop", "/workspace/big", "/proc/self/fd/0", "", "relative", "~/x",
    "/workspace/\x00", "/" + "a" * 5000, "/workspace/" + "d/" * 500 + "f", "/workspace/\ud800", "/workspace/caf\u00e9\n",
)  # fmt: skip
SHELL = (
    # signals
    "kill -9 -1", "kill -STOP -1", "kill -STOP 1; kill -9 1; kill -TERM 1", "kill -9 $$", "kill -STOP $$", "kill -9 $PPID",
    "for n in {1..64}; do kill -$n 1 2>/dev/null; done", "for n in {1..64}; do kill -$n -1 2>/dev/null; done",
    "pkill -STOP python; pkill -STOP -f kernel", "pkill -9 python", "(sleep 0.2; kill -9 -1) &", "trap '' INT TERM HUP QUIT; sleep 5",
    "trap 'kill -9 $$' EXIT; exit", "(trap '' TERM HUP INT; setsid sleep 2 &)", "kill -STOP $BASHPID", "suspend -f",
    # the end mark
    "trap 'printf \"%s\\n\" \"$BASH_COMMAND\"' DEBUG", "set -xv", "set +xv; trap - DEBUG",
    "trap 'eval \"$BASH_COMMAND 0\"; eval \"$BASH_COMMAND\"' DEBUG", 'printf() { builtin printf "$@"; builtin printf "$@"; }',
    "printf() { :; }; echo() { :; }", "unset -f printf echo", "enable -n printf echo", "enable printf echo", "builtin() { :; }; command() { :; }",
    "PROMPT_COMMAND='printf \"\\036%s\\036\" 0'", "PS1=$'\\036'; PS2=$'\\036'; PS4=$'\\036'", "shopt -s extdebug; trap 'false' DEBUG",
    "shopt -s extdebug; trap 'return 2' DEBUG", "alias printf='false '; shopt -s expand_aliases", "readonly -f printf; readonly PATH",
    "history; fc -l -1", "cat /proc/$$/cmdline /proc/$$/environ", "for n in 7 77 777 -1 99999999999999; do printf '\\036%s\\036' $n; done",
    "cat <&0 & cat <&255 &", "exec 255</dev/null", 'read -r -t 1 line <&0; echo "$line"', 'while read -r -t 0.2 line; do echo "$line"; done',
    "trap 'printf \"%s;0\\n\" \"${BASH_COMMAND##* }\" >&0' DEBUG", "head -c 1000000 /dev/zero >&20", "cat <&20 &", "cat <&19 &",
    # descriptors and the terminal
    "exec 19>&-", "exec 20>&-", "exec 19</dev/null", "for n in {3..30}; do echo 0 >&$n; done", "exec 0<&20", "exec 2>&20 1>&20",
    "exec 1>&- 2>&-", "exec 0<&-", "exec 0</dev/null", "exec >/dev/full 2>&1", "exec > /workspace/out 2>&1", "exec 1>/dev/tty 2>&1",
    'for n in {0..255}; do eval "exec $n>&-"; done', "stty raw -echo", "stty -icanon min 0 time 0; stty intr ^-", "stty sane",
    "stty rows 0 cols 0; tput reset", "exec < /dev/zero", "exec <> /dev/tty", "python3 -c 'import os; os.closerange(0, 4096)'",
    "for f in /proc/[0-9]*/fd/*; do printf BYTES > $f 2>/dev/null & done; sleep 0.2; kill %1", "printf BYTES > /dev/tty", "printf BYTES",
    "python3 -c 'import fcntl,termios\nfor c in \"exit 3\\n\": fcntl.ioctl(0, termios.TIOCSTI, c.encode())'",
    # the shell itself
    "exit 3", "exec true", "exec sleep 3", "exec cat", "exec bash", "set -e; false", "set -u; echo $nothing", "set -n", "set -o posix",
    "set -t", "return 2>/dev/null; logout", "ulimit -t 1; while :; do :; done", "ulimit -n 3", "ulimit -f 0", "ulimit -u 1",
    "ulimit -v 1000", "ulimit -s 8", "PATH=", "unset PATH HOME IFS PWD", "IFS=abcdefghij", "LC_ALL=C; LANG=xx", "BASH_ENV=/dev/zero",
    "cd /workspace; mkdir -p gone; cd gone; rmdir ../gone", "cd /proc/self/fd", "f() { f; }; f", "eval \"$(yes '(' | head -300 | tr -d '\\n')\"",
    "echo 'never closed", "cat <<END", "((((", "for", "}", "\\", "$(", "`", "#", "!", "; ;", "&& true", "\x1b[A", "\x04", "\x03",
    "echo a\x00b", "echo \ud800", "a" * 70_000, ": '" + "b\n" * 30_000 + "'", "select x in 1 2 3; do :; done", "read x", "cat", "bash -i", "python3 -i",
    # amounts
    "yes | head -c 3000000", "head -c 400000 /dev/urandom", "head -c 1000000 /dev/zero", "printf '\\xff%.0s' {1..70000}", "seq 200000",
    "head -c 3000000 /dev/zero | tr '\\0' '\\n'", "printf '%2000000s' x", "(timeout 0.5 yes > /dev/tty &)", "timeout 0.5 yes",
    "b() { [ $1 -gt 0 ] && { b $(($1 - 1)) & b $(($1 - 1)) & }; }; b 8", "for n in {1..400}; do sleep 0.3 & done; wait",
    "python3 -c 'import os, time\nfor n in range(500):\n  try:\n    if os.fork() == 0: time.sleep(0.5); os._exit(0)\n  except OSError: pass'",
    "python3 -c 'import threading, time\nfor n in range(500): threading.Thread(target=time.sleep, args=(0.5,)).start()'",
    "python3 -c 'x = bytearray(6 << 30)'", "head -c 100M /dev/zero > /workspace/big", "yes > /workspace/big", "rm -f /workspace/big",
    "for n in {1..2000}; do : > /tmp/n$n; done", "mkdir -p $(printf 'd/%.0s' {1..900})", "python3 -c 'while True: pass'", "sleep 20", "sleep 20 &",
    # files
    "rm -rf SOLUTION; mkdir -p SOLUTION", "rm -rf SOLUTION; ln -s /etc/passwd SOLUTION", "rm -rf SOLUTION; ln -s SOLUTION SOLUTION",
    "rm -rf SOLUTION; ln -s /dev/zero SOLUTION", "rm -rf SOLUTION; ln -s /proc/self/environ SOLUTION", "rm -rf SOLUTION; ln -s /nowhere SOLUTION",
    "rm -rf SOLUTION; head -c 200000 /dev/urandom > SOLUTION", "rm -rf SOLUTION; printf BYTES > SOLUTION", "rm -rf SOLUTION; truncate -s 500M SOLUTION",
    "chmod 000 SOLUTION /workspace", "chmod 755 /workspace", "rm -rf /workspace", "rm -rf /workspace/* /tmp/* ~/*", "rm -rf ~; touch ~",
    "cd /; rm -rf /workspace; touch /workspace", "cd /; rm -rf /workspace; ln -s / /workspace", "umask 777", "umask 022",
    "mkfifo /workspace/fifo; ln -s loop /workspace/loop", "touch $'/workspace/\\377\\n'", "ln -s /proc/1/root /workspace/root",
    "mount -t tmpfs none /tmp; unshare -Ur true", "rm -rf ~/cell-images; touch ~/cell-images", "rm -rf ~/cell-images; ln -s /dev ~/cell-images",
    "rm -f /tmp/* /run/* /var/tmp/*", "echo 'import os; os._exit(0)' > sitecustomize.py; cp sitecustomize.py json.py",
    "echo 'raise SystemExit' > ~/.bashrc; cp ~/.bashrc ~/.profile; mkdir -p ~/.ipython; touch ~/.ipython/profile_default",
    "cat /proc/net/unix; ls -la /proc/1/fd /proc/*/fd", "chattr +i SOLUTION; chown 0 SOLUTION; setfattr -n user.x -v y SOLUTION",
)  # fmt: skip
CELLS = (
    # its own pipes
    "import os\nfor n in range(3, 64):\n    try: os.write(n, BYTES)\n    except OSError: pass",
    "import os\nfor n in range(3, 64):\n    try: os.write(n, len(DATA).to_bytes(4, 'big') + DATA)\n    except OSError: pass",
    "import os\nos.closerange(3, 4096)", "import os\nos.closerange(0, 4096)", "import os\nos.dup2(1, 4); os.dup2(1, 5); os.dup2(1, 6)",
    "import os\nos.close(1)", "import sys\nsys.stdout.close()", "import sys\nsys.stdout = None", "import sys\nsys.stdout = sys.stderr = 7",
    "import sys\nsys.stdout.buffer.write(BYTES); sys.stdout.buffer.flush()", "import os\nos.write(1, BYTES * 50000)", "print('x' * 3000000)",
    "import os, fcntl\nfor n in range(64):\n    try: fcntl.fcntl(n, fcntl.F_SETFL, os.O_NONBLOCK)\n    except OSError: pass\nprint('y' * 500000)",
    "import gc\nfor each in gc.get_objects():\n    if type(each).__name__ == 'Images': each.take = lambda: MADE_UP",
    "import gc\nfor each in gc.get_objects():\n    if type(each).__name__ == 'Images': each._shown = MADE_UP",
    "import json\nreal = json.dumps\njson.dumps = lambda *a, **k: TEXT", "import os\nos.write = lambda *a: 0", "import struct\nstruct.Struct.pack = None",
    "import json\njson.loads = lambda *a: 7", "import os\nos.read = lambda *a: b''", "import os\nos.getpid = lambda: 1",
    # ends
    "import os\nos._exit(0)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "import os, signal\nos.kill(-1, signal.SIGKILL)", "import os\nos.abort()",
    "import os, signal\nos.killpg(0, signal.SIGSTOP)", "import os\nos.fork()", "import os\nfor n in range(5): os.fork()", "import os\nos.execvp('sleep', ['sleep', '3'])",
    "import ctypes\nctypes.string_at(0)", "import sys\nsys.setrecursionlimit(10**8)\nf = lambda: f()\nf()", "raise SystemExit(BYTES)", "exit()", "quit(3)",
    "raise BaseException('\\ud800')", "raise KeyboardInterrupt", "import signal\nsignal.raise_signal(signal.SIGINT)", "import threading, _thread\nthreading.Timer(0.05, _thread.interrupt_main).start()",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "import signal\nsignal.alarm(1)", "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
    "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
    "while True: pass", "input()", "import sys\nsys.stdin.read()", "import time\ntime.sleep(9)", "import os\nos.setsid()",
    "import asyncio\nasyncio.get_event_loop().stop()", "await nothing", "import threading\nthreading.Thread(target=lambda: [print('z' * 99) for _ in range(20000)]).start()",
    # values
    "class X:\n    def __repr__(self): raise SystemExit\nX()", "class X:\n    def __repr__(self): return 7\nX()", "class X:\n    def __repr__(self): return '\\ud800' * 100000\nX()",
    "class X:\n    def __repr__(self): import os; os._exit(3)\nX()", "class X:\n    def _repr_png_(self): return MADE_UP\nX()", "class X:\n    def __getattr__(self, name): return self\nX()",
    "class X:\n    def _repr_mimebundle_(self, **k): return {'image/png': BYTES, 7: 7}\nX()", "class E(Exception):\n    def __str__(self): raise E\nraise E",
    "'\\ud800'", "print('\\udcff\\x00\\x1e\\x1b]0;')", "10 ** 200000", "'q' * 10000000", "b'\\xff' * 100000", "[[]] * 100000", "DATA", "x = [x for x in range(10 ** 6)]\nx",
    # the interpreter
    "import builtins\ndel builtins.print", "import builtins\nbuiltins.__import__ = None", "import builtins\nbuiltins.str = builtins.bool = int", "globals().clear()",
    "import sys\nsys.modules.clear()", "import sys\nsys.path.clear(); sys.meta_path.clear()", "import sys\nsys.exit = sys.displayhook = sys.excepthook = None",
    "import sys\nsys.settrace(lambda *a: 1 / 0)", "import sys\nsys.addaudithook(lambda *a: 1 / 0)", "import gc\ngc.freeze(); gc.disable()", "del __builtins__",
    "get_ipython().run_cell = lambda *a, **k: None", "get_ipython().run_cell = lambda *a, **k: MADE_UP", "get_ipython().ask_exit()", "get_ipython().reset()", "%reset -f", "%cd /nowhere",
    "!kill -9 -1", "!kill -STOP $PPID", "%%bash\nkill -9 $PPID", "%run /dev/zero", "%load_ext nothing", "%pdb on\n1/0", "!yes | head -c 3000000", "%timeit 1", "%magic",
    "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))", "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nopen('x', 'w').write('x')", "x = bytearray(6 << 30)", "x = [bytearray(1 << 28) for _ in range(20)]",
    "import os, shutil\nos.makedirs('gone', exist_ok=True); os.chdir('gone'); os.rmdir('../gone')", "import os\nos.chroot('/tmp')", "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0x')",
    "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)", "import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)", "import multiprocessing as m\nm.Pool(8).map(abs, range(9))",
    "def f(", "\x00", "\ud800", "'" * 3, "(" * 5000, "x = " + "-" * 50_000 + "1", "lambda: (yield)", "from __future__ import nothing", "return 3", "async def f(): pass\nawait f()",
)  # fmt: skip
MADE_UP = (
    "[{'path': 7, 'mime': None, 'size_bytes': 'x'}]", "[{'path': '/a', 'mime': 'b', 'size_bytes': float('inf')}]", "7", "None",
    "[{'path': '\\ud800', 'mime': 'b', 'size_bytes': 1}]", "[{'path': '/a', 'mime': 'b', 'size_bytes': 10 ** 400}]", "[[]] * 3000", "object()",
    "[{'path': 'p' * 900000, 'mime': 'b', 'size_bytes': -1}] * 3", "{'ok': 1}", "(b'x', 3)",
)  # fmt: skip
TEXTS = (
    "'{\"ok\": Infinity, \"images\": []}'", "'{\"ok\": 1, \"images\": [{\"path\": 1, \"mime\": 2, \"size_bytes\": Infinity}]}'", "'[' * 60000", "'\\ud800'", "'{}'", "7", "''",
    "'{\"ok\": true, \"images\": [' + '[' * 50000", "'{\"ok\": true, \"images\": {}}'", "'9' * 100000", "'{\"ok\": true, \"images\": ' + '9' * 9000 + '}'", "'\"x\"' * 500000",
)  # fmt: skip


class Act(NamedTuple):
    """One tool call. `about`: where it comes from, for the table."""

    tool: str
    arguments: dict[str, Any]
    about: str


def act(chance: random.Random) -> Act:
    """Mostly a line or cell of the lists, now and then one made of two of them, or bytes that nobody has thought of."""
    made: Callable[[random.Random], Act] = chance.choices((_shell, _cell, _edit, _mangled, _input), (48, 36, 8, 5, 3))[
        0
    ]
    return made(chance)


def call_text(made: Act) -> str:
    """The act as a policy writes it; a lone surrogate can only be written as an escape."""
    return f"<tool_call>\n{json.dumps({'name': made.tool, 'arguments': made.arguments})}\n</tool_call>"


def _shell(chance: random.Random) -> Act:
    line = chance.choice(SHELL)
    if chance.random() < 0.15:
        line = f"{line}{chance.choice(('; ', chr(10), ' & ', ' | ', ' && '))}{chance.choice(SHELL)}"
    return Act("execute_bash", {"command": _filled(line, chance, "'%s'")}, line[:60])


def _cell(chance: random.Random) -> Act:
    code = chance.choice(CELLS)
    if chance.random() < 0.15:
        code = f"{code}\n{chance.choice(CELLS)}"
    return Act("execute_ipython_cell", {"code": _filled(code, chance, "b'%s'")}, code[:60])


def _filled(text: str, chance: random.Random, quoted: str) -> str:
    data = "b'" + chance.choice(TEXTS).replace("'", '"')[:200].replace('"', "").replace("\\", "") + "'"
    for name, given in (
        ("BYTES", quoted % chance.choice(BYTES)), ("SOLUTION", SOLUTION), ("MADE_UP", chance.choice(MADE_UP)),
        ("TEXT", chance.choice(TEXTS)), ("DATA", data),
    ):  # fmt: skip
        text = text.replace(name, given)
    return text


def _input(chance: random.Random) -> Act:
    text = chance.choice(("C-c", "C-d", "C-z", "", "y", "\x1e", "x" * 5000, "\ud800", "exit", "a\x00b"))
    return Act("execute_bash", {"command": text, "is_input": True}, f"input {text[:20]!r}")


def _edit(chance: random.Random) -> Act:
    command = chance.choice(("view", "create", "str_replace", "insert", "undo_edit"))
    number = lambda: chance.choice((-1, 0, 1, 2, 10**9, 2**70))  # noqa: E731
    given: dict[str, Any] = {"command": command, "path": chance.choice(PLACES)}
    for name in ("file_text", "old_str", "new_str"):
        if chance.random() < 0.6:
            given[name] = chance.choice(("", "a", "\ud800", "\x00", "b\r\n" * 3000))
    if chance.random() < 0.5:
        given["insert_line"] = number()
    if chance.random() < 0.3:
        given["view_range"] = [number() for _ in range(chance.choice((2, 2, 2, 0, 3)))]
    return Act("str_replace_editor", given, f"editor: {command} {given['path'][:40]}")


def _mangled(chance: random.Random) -> Act:
    """A line of ours with bytes of chance in it."""
    line = list(chance.choice((*SHELL, *CELLS)))
    for _ in range(chance.randint(1, 8)):
        line[chance.randrange(len(line))] = chr(
            chance.choice((0, 10, 30, 34, 36, 39, 40, 92, 96, 127, 0xFF, 0xD800, 0x1F600))
        )
    text = _filled("".join(line), chance, "'%s'")
    if chance.random() < 0.5:
        return Act("execute_bash", {"command": text}, "a mangled line")
    return Act("execute_ipython_cell", {"code": text}, "a mangled cell")
