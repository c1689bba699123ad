"""Checks of the seal: what a kind of sandbox must keep from the code inside, by whatever means it does.

Each carries attacks out that need nothing of the server's machine, or asks the sandbox about itself. A strong kind
passes by the same filter as the others: the execution server sets it, whatever the kernel below.
"""

import functools
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from sandbox import selfcheck
from sandbox.attack import catalogue
from sandbox.attack.run import PLACE, tried
from sandbox.attack.surroundings import MODULES
from sandbox.contract.trial import ContractTrial, expect
from sandbox.isolators.masks import DIRECTORIES, FILES
from sandbox.isolators.payload import joined
from sandbox.protocol import Sandbox
from sandbox.remote.box import RemoteSandbox

OF_HOST: Final = ("host-key-read", "host-key-revoke")  # they look for what a machine of ours holds
CAPABILITIES: Final = "^Cap(Inh|Prm|Eff|Amb):"
SEAL: Final = """
import ctypes
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0), status["Seccomp"].strip())
"""  # PR_GET_NO_NEW_PRIVS: not every kernel's status has a line of it


async def armed(trial: ContractTrial) -> RemoteSandbox:
    """A sandbox with the attacks in it. Code with capabilities is not let loose: as root it could harm the server."""
    box = await trial.box()
    status = (await box.run(["grep", "-E", CAPABILITIES, "/proc/self/status"])).stdout.split()
    shown = dict(zip(status[::2], status[1::2], strict=True))
    none = b"CapEff:" in shown and not any(int(each, 16) for each in shown.values())
    expect(none, "code inside has capabilities, so no attack is carried out")
    await box.write_file(PLACE, joined(MODULES))
    return box


async def refused(box: Sandbox, attacks: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Each must have been carried out, and have achieved nothing."""
    open_to = []
    for name, (program, facts) in attacks.items():
        found = await tried(box, program, facts)
        if found.done is not False:
            open_to.append(f"{name}: {found.said}")
    expect(not open_to, "; ".join(open_to))


def of_group(group: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    chosen = (each for each in catalogue.attacks() if each.group == group and each.name not in OF_HOST)
    return {each.name: (each.program, each.facts) for each in chosen}


async def what_runs_inside_is_filtered(trial: ContractTrial) -> None:
    shown = await (await trial.box()).run(["python3", "-c", SEAL])
    expect(shown.stdout == b"1 2\n", shown)


async def kernel_keys_are_out_of_reach(trial: ContractTrial) -> None:
    """Also those that another sandbox of the same server left for it."""
    facts, attacks = {"note": f"contract-{secrets.token_hex(8)}"}, of_group("keys")
    await tried(await armed(trial), "leave_note", facts)
    await refused(await armed(trial), {name: (program, facts) for name, (program, _) in attacks.items()})


async def parts_of_the_kernel_that_nobody_needs_are_shut(trial: ContractTrial) -> None:
    await refused(await armed(trial), of_group("kernel"))


async def socket_families_are_an_allow_list(trial: ContractTrial) -> None:
    await refused(await armed(trial), of_group("sockets"))


async def there_are_no_further_namespaces(trial: ContractTrial) -> None:
    await refused(await armed(trial), of_group("namespaces"))


async def its_server_is_hidden(trial: ContractTrial) -> None:
    await refused(await armed(trial), of_group("server"))


async def entries_of_proc_are_masked(trial: ContractTrial) -> None:
    """Whatever the server's kernel has of them."""
    facts = {"entries": [f"/proc/{name}" for name in (*FILES, *DIRECTORIES)]}
    await refused(await armed(trial), {"proc": ("proc_entries", facts)})


async def _asked(check: Callable[[Sandbox], Awaitable[None]], trial: ContractTrial) -> None:
    await check(await trial.box(limits=selfcheck.LIMITS))


def _isolation() -> Iterator[Callable[[ContractTrial], Awaitable[None]]]:
    """Those of the self-check, which leaves them out for a kind that it does not know."""
    for each in selfcheck.ISOLATION_CHECKS:
        if each is not selfcheck.children_are_sealed:
            check = functools.partial(_asked, each)
            yield functools.update_wrapper(check, each)


SEAL_CHECKS: Final = (
    what_runs_inside_is_filtered, kernel_keys_are_out_of_reach, parts_of_the_kernel_that_nobody_needs_are_shut,
    socket_families_are_an_allow_list, there_are_no_further_namespaces, its_server_is_hidden,
    entries_of_proc_are_masked, *_isolation(),
)  # fmt: skip
