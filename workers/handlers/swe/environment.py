"""The environment of an image: conda's, where the image has one, for the agent, the build and the tests.

SWE-bench's images activate it in `/root/.bashrc`, which no sandbox reads. What is installed for EVAL goes beside it, to
a user's site in the sandbox: the image stays as it is, so that no patch's build can change Python or the test runner.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

from sandbox.errors import SandboxError
from sandbox.isolators.inside import ENVIRONMENT
from sandbox.protocol import ProcessResult, Sandbox
from workers.handlers.swe.protected import TEST_TOOLS

CONDA = "/opt/miniconda3"
NAME = "testbed"
PREFIX = f"{CONDA}/envs/{NAME}"
USER_BASE = "/workspace/.installed"  # PYTHONUSERBASE of EVAL
HOME = "/workspace/.home"  # of the build: for the settings of distutils
_PROBE_S = 60.0
_ACTIVATE = f"if [ -e {CONDA}/bin/activate ]; then source {CONDA}/bin/activate {NAME}; fi"
# The commands come as arguments, one a line of the shell: as in SWE-bench's scripts, one that fails stops nothing.
_SETTING = f"""
exec 3>&1 1>&2
{_ACTIVATE}
cd "$1"; shift
for command; do eval "$command"; done
env -0 >&3
"""
_INSTALL = """
mkdir -p "$HOME" "$PYTHONUSERBASE"
printf '[install]\\nuser=1\\n' > "$HOME/.pydistutils.cfg"
cd "$1"
command -v python >/dev/null || python() { python3 "$@"; }  # an image of Debian's has that name alone
eval "$2"
"""
_OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # 0 is "no isolation"; 1 would change nothing
    "PIP_NO_DEPS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
    # Into the user's site, whatever is there already: the image's own site is read-only, and nothing is removed there.
    "PIP_USER": "1",
    "PIP_IGNORE_INSTALLED": "1",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",  # Debian's pip takes no --user without it
    "PYTHONUSERBASE": USER_BASE,
    "HOME": HOME,
}
# Variables need not be text that an argument of `env` could carry, and there may be many.
_WITH_ENVIRONMENT = "import json, os, sys; os.execvpe(sys.argv[1], sys.argv[1:], json.load(sys.stdin))"
_MODULES = (".py", ".pyc", ".so")
# What can be imported from a user's site: of its directory, and of the directories and eggs that `.pth` files add. A
# file of that kind may begin with a byte order mark, and its lines are relative to where it stands.
_LIST_USER_SITE = """
import glob, os, sys, zipfile
places = glob.glob(os.path.join(sys.argv[1], "lib", "python*", "site-packages"))
for place in list(places):
    for file in glob.glob(os.path.join(place, "*.pth")) + glob.glob(os.path.join(place, ".*.pth")):
        with open(file, encoding="utf-8-sig", errors="surrogateescape") as lines:
            places += [os.path.join(place, line.strip()) for line in lines if line.strip() and line[0] != "#"
                       and not line.startswith(("import ", "import\\t"))]
for place in places:
    names = []
    if os.path.isdir(place):
        names = os.listdir(place)
    elif zipfile.is_zipfile(place):
        names = [name.split("/")[0] for name in zipfile.ZipFile(place).namelist()]
    sys.stdout.buffer.write(b"".join(os.fsencode(name) + b"\\0" for name in names))
"""


def of_agent() -> dict[str, str]:
    """Variables of a sandbox whose image may have conda's environment; directories that it lacks do no harm.

    Given when the sandbox is made, they hold in every shell, also in one that follows a shell that has ended.
    """
    return {
        "PATH": f"{PREFIX}/bin:{CONDA}/condabin:{CONDA}/bin:{ENVIRONMENT['PATH']}",
        "CONDA_DEFAULT_ENV": NAME,
        "CONDA_PREFIX": PREFIX,
    }


async def activate(sandbox: Sandbox) -> None:
    """Activates it in the agent's shell, with all that its packages set besides."""
    await sandbox.bash(f"{_ACTIVATE} >/dev/null 2>&1")


async def of_tests(sandbox: Sandbox, workdir: str, python: str, commands: Sequence[str]) -> dict[str, str]:
    """The variables that SWE-bench's script has before it installs. Asked before the patch is there.

    `python`: the repository's own; what stands beside it is found first, as in an environment that is active.
    """
    done = await sandbox.run(["bash", "-c", _SETTING, "bash", workdir, *commands], timeout_s=_PROBE_S)
    if done.timed_out or done.exit_code != 0 or done.dropped_bytes:
        raise SandboxError(f"the variables of the tests cannot be had: {done.stderr[-300:]!r}")
    pairs = [pair.partition("=") for pair in done.stdout.decode(errors="surrogateescape").split("\0") if pair]
    found = {name: value for name, _, value in pairs if name not in {"_", "SHLVL", "PWD", "OLDPWD"}}
    beside, path = str(PurePosixPath(python).parent), found.get("PATH", ENVIRONMENT["PATH"])
    return {**found, "PATH": path if path.startswith(f"{beside}:") else f"{beside}:{path}", "PYTHONUSERBASE": USER_BASE}


async def install(
    sandbox: Sandbox, workdir: str, command: str, environment: Mapping[str, str], timeout_s: float
) -> ProcessResult:
    """Runs the spec's command on the patched repository, without a network. What it starts ends with it.

    An exit code that is not 0 stops nothing, as in SWE-bench's script.
    """
    given = json.dumps({**environment, **_OFFLINE}).encode()
    argv = ["python3", "-I", "-c", _WITH_ENVIRONMENT, "bash", "-c", _INSTALL, "bash", workdir, command]
    return await sandbox.run(argv, stdin=given, timeout_s=timeout_s, output_bytes=64 << 10, alone=True)


async def shadowed(sandbox: Sandbox, own: Collection[str]) -> list[str]:
    """Modules of the test runner that an install has put in front of the image's."""
    done = await sandbox.run(["python3", "-I", "-c", _LIST_USER_SITE, USER_BASE], output_bytes=1 << 20)
    if done.exit_code != 0 or done.dropped_bytes:
        raise SandboxError(f"what was installed cannot be listed: {done.stderr[-300:]!r}")
    names = {name for name in done.stdout.decode(errors="replace").split("\0") if name}
    plain = {name.split(".", 1)[0] for name in names if "." not in name or name.endswith(_MODULES)}
    return sorted((plain & TEST_TOOLS) - set(own))
