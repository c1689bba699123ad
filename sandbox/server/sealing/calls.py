"""The system calls that a sandbox is refused: each with its number on x86_64 and on aarch64 (-: there is none).

The numbers are here because an image's headers may be older than the kernel. From 424 on both have the same.
"""

from __future__ import annotations

MACHINES = ("x86_64", "aarch64")
UNKNOWN = 470  # the first number that nobody has judged yet

# Answered as by a kernel that lacks them, and programs do without. Keys pass between sandboxes of one user, whatever
# session keyring each of them has. SysV memory, message queues and files of `memfd_create` hold memory that no process
# maps, and a watchdog that counts what processes have counts none of it.
MISSING = """
keyctl 250 219, add_key 248 217, request_key 249 218,
io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, userfaultfd 323 282, memfd_secret 447 447,
memfd_create 319 279, clone3 435 435, statmount 457 457, listmount 458 458, open_tree_attr 467 467,
lsm_get_self_attr 459 459, lsm_set_self_attr 460 460, lsm_list_modules 461 461,
mq_open 240 180, mq_unlink 241 181, mq_timedsend 242 182, mq_timedreceive 243 183, mq_notify 244 184,
mq_getsetattr 245 185, shmget 29 194, shmat 30 196, shmctl 31 195, shmdt 67 197, msgget 68 186, msgsnd 69 189,
msgrcv 70 188, msgctl 71 187, semget 64 190, semop 65 193, semctl 66 191, semtimedop 220 192
"""

# Answered as to somebody without the right: mounts and namespaces, the kernel's own settings and modules, other
# processes' memory and descriptors, placement on CPUs and memory nodes, and what is obsolete.
FORBIDDEN = """
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, setns 308 268, fsopen 430 430, fsconfig 431 431,
fsmount 432 432, fspick 433 433, open_tree 428 428, move_mount 429 429, mount_setattr 442 442,
open_by_handle_at 304 265, fanotify_init 300 262, fanotify_mark 301 263, quotactl 179 60, quotactl_fd 443 443,
bpf 321 280, perf_event_open 298 241, lookup_dcookie 212 18, syslog 103 116, acct 163 89, reboot 169 142,
kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273, delete_module 176 106,
create_module 174 -, query_module 178 -, get_kernel_syms 177 -, iopl 172 -, ioperm 173 -, modify_ldt 154 -,
swapon 167 224, swapoff 168 225, settimeofday 164 170, clock_settime 227 112, sethostname 170 161,
setdomainname 171 162, vhangup 153 58, kcmp 312 272, pidfd_getfd 438 438, process_madvise 440 440, vmsplice 278 75,
remap_file_pages 216 234, mbind 237 235, set_mempolicy 238 237, set_mempolicy_home_node 450 450,
migrate_pages 256 238, move_pages 279 239, sched_setaffinity 203 122, sched_setscheduler 144 119,
sched_setattr 314 274, sched_setparam 142 118, nfsservctl 180 42, _sysctl 156 -, uselib 134 -, ustat 136 -,
sysfs 139 -, afs_syscall 183 -, tuxcall 184 -, security 185 -, vserver 236 -, getpmsg 181 -, putpmsg 182 -
"""

# Some arguments of these are refused: see `sandbox.server.sealing.filter`.
JUDGED = (
    "clone 56 220, unshare 272 97, personality 135 92, ioctl 16 29, prctl 157 167, socket 41 198, socketpair 53 199"
)


def unknown(machine: str) -> str:
    """The message about an architecture whose numbers are not known."""
    return (
        f"sandboxes filter system calls, and their numbers on {machine} are not known here (known are "
        f"{' and '.join(MACHINES)}): run the workers on such a machine"
    )


def numbers(text: str, machine: str) -> dict[str, int]:
    """Numbers by name of those calls of a table that the machine has. Raises `ValueError` for another architecture."""
    if machine not in MACHINES:
        raise ValueError(unknown(machine))
    rows = (each.split() for each in text.split(","))
    found = {row[0]: row[1 + MACHINES.index(machine)] for row in rows}
    return {name: int(number) for name, number in found.items() if number != "-"}
