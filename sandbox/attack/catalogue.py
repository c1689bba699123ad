"""The attacks: what each is named, which program carries it out, and what it is first tried without."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sandbox.attack import limits
from sandbox.isolators.masks import masked_directories, masked_files


class Control(enum.Enum):
    """The place in which the attack must succeed, or it proves nothing here."""

    UNSEALED = "the same kind of sandbox without filter, masks and a hidden server"
    HOST = "a plain process of this machine, as the sandboxes' user"
    WIDE = "the same kind of sandbox with wide limits"
    NAIVE = "the same kind of sandbox with a server that lacks what the attack meets"


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """One attack. `program` is a function in `sandbox.attack.inside`; on the protocol, in `sandbox.attack.wire`."""

    name: str
    group: str
    program: str
    control: Control
    facts: Mapping[str, Any] = {}
    leaves: bool = False  # it counts what is there when its sandbox has been destroyed


CALLS = {
    "io-uring": "io_uring_setup", "userfaultfd": "userfaultfd", "memfd-secret": "memfd_secret", "memfd": "memfd_create",
    "clone3": "clone3",
    "statmount": "statmount", "listmount": "listmount", "lsm-list": "lsm_list_modules", "posix-mqueue": "mq_open",
    "sysv-shm": "shmget", "sysv-msg": "msgget", "sysv-sem": "semget", "bpf": "bpf", "perf-event": "perf_event_open",
    "kexec-load": "kexec_load", "module-load": "init_module", "kernel-log": "syslog", "fanotify": "fanotify_init",
    "quotactl": "quotactl", "open-by-handle": "open_by_handle_at", "kcmp": "kcmp", "process-madvise": "process_madvise",
    "vmsplice": "vmsplice", "modify-ldt": "modify_ldt", "remap-file-pages": "remap_file_pages", "mbind": "mbind",
    "memory-policy": "set_mempolicy", "move-pages": "move_pages", "migrate-pages": "migrate_pages",
}  # fmt: skip
OTHER_CALLS = {
    "x32-number": "x32_number", "int80-number": "int80_number", "filter-undo": "filter_undo",
    "personality-exec": "personality_exec", "tiocsti": "terminal_input", "affinity-widen": "affinity",
    "scheduler": "scheduler", "hide-memory": "hide_memory", "pidfd-getfd": "take_descriptor",
}  # fmt: skip
KEYS = {
    "host-key-read": "host_key_read", "host-key-revoke": "host_key_revoke", "key-note-run-to-eval": "key_note",
    "key-add": "key_add", "key-request": "key_request", "keyring-join": "keyring_join",
}  # fmt: skip
SOCKETS = {
    "vsock": (40, 1, 0), "alg": (38, 5, 0), "rxrpc": (33, 2, 2), "packet": (17, 3, 0), "can": (29, 3, 1),
    "tipc": (30, 5, 0), "bluetooth": (31, 5, 1), "kcm": (41, 5, 0), "xdp": (44, 3, 0), "smc": (43, 1, 0),
    "netlink-sockdiag": (16, 3, 4), "netlink-xfrm": (16, 3, 6), "netlink-audit": (16, 3, 9),
    "netlink-netfilter": (16, 3, 12), "netlink-uevent": (16, 3, 15), "netlink-generic": (16, 3, 16),
}  # fmt: skip
FOR_OWN_NETWORK = ("packet", "xdp")  # for whoever has a network namespace
SERVER = {
    "ptrace-server": "ptrace_server", "proc-mem-server": "memory_of_server", "vm-readv-server": "vm_readv_server",
    "proc1-environ": "environment_of_server", "proc1-root": "root_of_server", "proc1-fd": "descriptor_of_server",
}  # fmt: skip
NAMESPACES = {
    "unshare-user": "unshare_user", "unshare-net": "unshare_net", "clone-newuser": "clone_user",
    "clone3-newuser": "clone3_user", "mount": "mount", "fsopen": "fsopen", "chroot": "chroot",
    "sethostname": "sethostname",
}  # fmt: skip
HOST = {
    "host-file": "host_file", "host-tmp": "host_tmp", "host-shared-memory": "host_shared_memory",
    "host-process": "host_process", "host-signal": "host_signal", "environment": "environment",
    "host-loopback": "host_loopback", "abstract-host-socket": "host_abstract_socket", "host-socket": "host_socket",
}  # fmt: skip
LEFT = {
    "daemon": "leave_background", "setsid-daemon": "leave_session", "double-fork": "leave_orphan",
    "files-left": "leave_files",
}  # fmt: skip
WIRE = {
    "second-configure": "second_configure", "half-frame": "half_frame", "oversize-frame": "oversize_frame",
    "end-mark-forgery": "end_mark_forgery", "stop-server": "stop_server", "kill-everything": "kill_everything",
}  # fmt: skip
LIMITS = "limits"
SINGLE = ("keys", "key-users", "kallsyms", "config.gz", "timer_list")


def _each(group: str, programs: Mapping[str, str], control: Control, *, leaves: bool = False) -> Iterator[Attack]:
    for name, program in programs.items():
        yield Attack(name=name, group=group, program=program, control=control, leaves=leaves)


def _masks() -> Iterator[Attack]:
    hidden: dict[str, Sequence[str]] = {
        f"proc-{name.replace('.', '-').replace('_', '-')}": (f"/proc/{name}",) for name in SINGLE
    }
    hidden["proc-hardware"] = tuple(path for path in masked_files() if path.removeprefix("/proc/") not in SINGLE)
    hidden["proc-directories"] = masked_directories()
    for name, entries in hidden.items():
        facts = {"entries": entries}
        yield Attack(name=name, group="proc", program="proc_entries", control=Control.UNSEALED, facts=facts)


def _calls() -> Iterator[Attack]:
    for name, call in CALLS.items():
        facts = {"call": call}
        yield Attack(name=name, group="kernel", program="open_call", control=Control.UNSEALED, facts=facts)


def _sockets() -> Iterator[Attack]:
    for name, socket in SOCKETS.items():
        facts = {"socket": socket, "own_network": name in FOR_OWN_NETWORK}
        control = Control.HOST if name in FOR_OWN_NETWORK else Control.UNSEALED
        yield Attack(name=name, group="sockets", program="socket_family", control=control, facts=facts)


def _limits() -> Iterator[Attack]:
    for name, (program, facts) in limits.ATTACKS.items():
        yield Attack(name=name, group=LIMITS, program=program, control=Control.WIDE, facts=facts)
    yield Attack(name="output", group=LIMITS, program="flood", control=Control.WIDE)
    yield Attack(name="cpu-sessions", group=LIMITS, program="starve", control=Control.HOST, facts=limits.spinners())


def attacks() -> Sequence[Attack]:
    """All, in the order of the table."""
    made = [*_each("keys", KEYS, Control.UNSEALED), *_calls(), *_each("kernel", OTHER_CALLS, Control.UNSEALED)]
    made += [*_sockets(), *_each("namespaces", NAMESPACES, Control.HOST), *_each("server", SERVER, Control.UNSEALED)]
    made += [*_masks(), *_each("host", HOST, Control.HOST), *_each("left", LEFT, Control.HOST, leaves=True)]
    made += _limits()
    return [*made, *_each("protocol", WIRE, Control.NAIVE)]
