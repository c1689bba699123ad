"""A real Slurm of four virtual nodes, and a deployment on it that tests drive by the command line."""

import contextlib
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prorl_mq.schema import rendezvous
from slurm.commands import environment
from slurm.layout import job_name, node_directory
from slurm.spec import Deployment

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "ops" / "slurm-cluster.sh"
PLUGIN = ROOT / "tests" / "chaos" / "plugin"
LOOK_S = 0.1


class Cluster:
    """Slurm's commands on one test cluster."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = environment(os.environ) | {"SLURM_CONF": f"{root}/slurm.conf"}
        self.env["PATH"] += ":/usr/sbin:/sbin"

    def admin(self, action: str, *words: str) -> None:
        subprocess.run([SCRIPT, action, self.root, *words], check=True, env=self.env, capture_output=True, timeout=120)

    def run(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run(argv, env=self.env, text=True, capture_output=True, check=False, timeout=60)
        assert not (check and done.returncode), f"{argv} ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def said(self) -> str:
        """Its tasks and nodes, and the ends of its daemons' logs."""
        queue = self.run("squeue", "-r", "-t", "all", "-o", "%i %j %T %r %N %M %S", check=False)
        nodes = self.run("sinfo", "-N", "-o", "%N %T %E", check=False)
        return f"{queue}\n{nodes}\n{_ends(self.root / 'log')}"

    def states(self, name: str) -> dict[str, str]:
        """Task → state, of all tasks of a job's name, ended ones too."""
        lines = self.run("squeue", "-h", "-r", "-t", "all", "-n", name, "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def nodes_of(self, name: str) -> dict[str, str]:
        """Running task → node."""
        lines = self.run("squeue", "-h", "-r", "-t", "R", "-n", name, "-o", "%i %N").splitlines()
        return dict(line.split() for line in lines)

    def node_state(self, node: str) -> str:
        """Of all nodes at once: for one alone a cache may answer."""
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).splitlines()
        return dict(line.split() for line in lines).get(node, "")

    def until(self, condition: Callable[[], bool], what: str, within_s: float = 240) -> None:
        """Waits for what Slurm can only be asked for again and again."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {within_s} s in vain: {what}")
            time.sleep(LOOK_S)

    def processes(self, *marks: str) -> list[int]:
        """Living processes of the cluster's jobs that have all the marks in their environment."""
        wanted = {f"SLURM_CONF={self.root}/slurm.conf".encode(), *(mark.encode() for mark in marks)}
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = set((process / "environ").read_bytes().split(b"\0"))
                if wanted <= environ and any(each.startswith(b"SLURM_JOB_ID=") for each in environ):
                    found.append(int(process.name))
        return found


class Site:
    """A deployment: one Redis and one API for all tests, and arrays that each test brings."""

    def __init__(self, cluster: Cluster, shared: Path) -> None:
        self.cluster = cluster
        self.shared = shared
        self.env = cluster.env | {"PYTHONPATH": f"{PLUGIN}:{ROOT}", "PRORL_LOG": "INFO"}
        self.arrays: dict[str, Mapping[str, Any]] = {}
        self.backends: dict[str, Mapping[str, Any]] = {}
        self.scale: dict[str, int] = {}
        self.server_time = "1-00:00"
        self.server_place: tuple[str, ...] = ('partition = "urgent"', 'sbatch = ["--nodelist=n1"]')  # no test loses it
        self.watch_time = ""  # of a supervisor that is a job
        self.scratch = f"{shared}/scratch"
        self._deployment = Deployment(name="t", shared=str(shared))

    @property
    def spec(self) -> Path:
        path = self.shared / "spec.toml"
        path.write_text(self._text())
        assert tomllib.loads(path.read_text())
        return path

    def prorl(self, command: str, *words: str, code: int = 0) -> str:
        """One call of `prorl-slurm`; what it printed."""
        argv = [sys.executable, "-m", "slurm", command, "--spec", str(self.spec), *words]
        done = subprocess.run(argv, env=self.env, text=True, capture_output=True, check=False, timeout=600, cwd=ROOT)
        assert done.returncode == code, (argv, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def start(self, **arrays: Mapping[str, Any]) -> None:
        """Submits arrays. Defaults suit tests: no sandboxes, small leases, ten seconds between warning and end."""
        common = {"sandbox": "none", "slots": 4, "warn_s": 40, "options": ["--handlers chaos"]}
        self.arrays = {name: {**common, **about} for name, about in arrays.items()}
        self.prorl("submit", *self.arrays)

    def wait_for_status(self, *texts: str, within_s: float = 240) -> str:
        """Asks `status` until it says all of it."""
        deadline = time.monotonic() + within_s
        while True:
            said = self.prorl("status")
            if all(text in said for text in texts):
                return said
            if time.monotonic() > deadline:
                raise TimeoutError(f"{texts} never stood in:\n{said}\n{self.logs()}")
            time.sleep(0.3)

    def tasks(self, array: str) -> dict[str, str]:
        return self.cluster.states(self.job(array))

    def job(self, name: str) -> str:
        """The name of a job in Slurm."""
        return job_name(self._deployment, name)

    def processes(self, name: str) -> list[int]:
        """Living processes of a job of this deployment."""
        return self.cluster.processes(f"SLURM_JOB_NAME={self.job(name)}")

    def logs(self) -> str:
        return _ends(self.shared / "logs")

    def end(self) -> None:
        """Cancels the arrays, and waits until nothing of them runs and Slurm knows."""
        if not self.arrays:
            return
        self.prorl("cancel", *self.arrays)
        for array in self.arrays:
            self.cluster.until(lambda array=array: not self.processes(array), f"{array} still runs")  # type: ignore[misc]
        names = {self.job(array) for array in self.arrays}
        self.cluster.until(lambda: not names & set(self.cluster.run("squeue", "-h", "-o", "%j").split()), f"{names}")
        self.arrays = {}

    @property
    def state(self) -> Path:
        """What lies on the nodes' own disks, a directory for each."""
        return self.shared / "scratch" / f"prorl-{os.getuid()}" / node_directory("t", str(self.shared))

    def file(self, role: str) -> Path:
        return self.shared / "rendezvous" / f"{role}.json"

    def _text(self) -> str:
        scale = {"every_s": 1, **self.scale}
        lines = [
            'name = "t"',
            f'shared = "{self.shared}"',
            f'scratch = "{self.scratch}"',
            "lease_ms = 2000",
        ]
        lines += ["[defaults]", 'interface = "lo"', 'partition = "main"']
        server = [f'time = "{self.server_time}"', *self.server_place]
        lines += ["[redis]", "tls = true", *server, "[api]", *server]
        lines += ["[watch]", f'time = "{self.watch_time}"'] if self.watch_time else []
        lines += ["[scale]", *(f"{name} = {value}" for name, value in scale.items())]
        for name, about in self.backends.items():
            lines += [f"[backends.{name}]", *(f"{key} = {_toml(value)}" for key, value in about.items())]
        for name, about in self.arrays.items():
            lines += [f"[arrays.{name}]", *(f"{key} = {_toml(value)}" for key, value in about.items())]
        return "\n".join(lines) + "\n"


def _ends(directory: Path) -> str:
    return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(directory.iterdir()))


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@contextlib.contextmanager
def served(site: Site) -> Iterator[Site]:
    """A site whose Redis and API are up. That takes ten seconds, on a machine that has much else to do more than a
    minute; and a node that was taken for lost begins again.
    """
    site.prorl("submit", "redis", "api")
    try:
        site.cluster.until(site.file("trainer").exists, "no API", within_s=400)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{site.logs()}\n{site.cluster.said()}") from None
    assert rendezvous.read(site.file("worker")).url.startswith("rediss://")
    yield site
