"""Checks of a server's routes: names, labels, tokens, and the end of what nobody wants."""

import asyncio
import contextlib

from sandbox.contract.trial import SHORT_S, ContractTrial, expect
from sandbox.errors import NotNow, SandboxError, SandboxGone
from sandbox.remote.http import GONE
from sandbox.remote.tunnel import PIECE_BYTES

LATE_S = 15.0


async def it_says_who_it_is(trial: ContractTrial) -> None:
    hello = await trial.server.hello()
    expect(bool(hello.name and hello.kind), hello)


async def a_wrong_token_is_refused(trial: ContractTrial) -> None:
    box, body = await trial.box(), b"{}"
    one = f"/sandboxes/{box.handle.sandbox_id}"
    asked = ["GET ", "GET /sandboxes", f"GET {one}", f"PUT {one}", f"DELETE {one}", "POST /heartbeat"]
    async with trial.stranger() as server:
        for method, path in (each.split(" ") for each in asked):
            try:
                answer = await server.exchange(method, path, body)
            except NotNow as refused:
                expect("refuses the token" in str(refused), refused)
            else:
                expect(False, (method, path, answer))
        try:
            (await server.link(box.handle.sandbox_id, [])).close()
        except SandboxError:
            pass
        else:
            expect(False, "a link for a wrong token")
    await box.ping()


async def the_same_create_twice_is_one_sandbox(trial: ContractTrial) -> None:
    name, wanted = trial.name(), trial.wanted()
    answers = [await trial.put(name, wanted) for _ in range(2)]
    expect([answer.status for answer in answers] == [201, 200], answers)


async def creates_at_the_same_time_are_one_sandbox(trial: ContractTrial) -> None:
    name, wanted = trial.name(), trial.wanted()
    answers = await asyncio.gather(*(trial.put(name, wanted) for _ in range(3)))
    expect({answer.status for answer in answers} <= {200, 201}, answers)
    expect(list(await trial.server.of_service(trial.service)).count(name) == 1, name)


async def another_sandbox_of_one_name_is_refused(trial: ContractTrial) -> None:
    name = trial.name()
    await trial.put(name, trial.wanted())
    answer = await trial.put(name, trial.wanted(owner="another"))
    expect((answer.status, answer.refusal.error) == (409, "taken"), answer)


async def bad_bodies_and_names_are_refused(trial: ContractTrial) -> None:
    for name, body in (
        (trial.name(), b"{"),
        (trial.name(), b'{"owner": "o", "surprise": 1}'),
        ("UPPER", b'{"owner": "o"}'),
    ):
        answer = await trial.put(name, body)
        expect((answer.status, answer.refusal.error) == (422, "unsupported"), answer)


async def a_name_that_is_not_there_is_gone(trial: ContractTrial) -> None:
    name = trial.name()
    answer = await trial.look(name)
    expect((answer.status, answer.refusal.error) == (404, GONE), answer)
    with contextlib.suppress(SandboxGone):
        await trial.server.link(name, [])
        expect(False, "a link to nothing")
    expect(list(await trial.server.keep([name])) == [name], "a heartbeat that knows it")
    await trial.server.delete(name)


async def a_list_has_the_services_own(trial: ContractTrial) -> None:
    mine, other = trial.name(), trial.name()
    await trial.put(mine, trial.wanted(owner="job s a b"))
    await trial.put(other, trial.wanted(service=trial.service + "x"))
    found = await trial.server.of_service(trial.service)
    expect(found.get(mine) == "job s a b" and other not in found, found)
    answer = await trial.server.exchange("GET", "/sandboxes", query={"service": trial.service, "after": max(found)})
    expect(b"job s a b" not in answer.body, answer)


async def a_deleted_sandbox_is_gone(trial: ContractTrial) -> None:
    box = await trial.box()
    await box.close()
    answer = await trial.look(box.handle.sandbox_id)
    expect((answer.status, answer.refusal.error) == (404, GONE), answer)
    expect(box.handle.sandbox_id not in await trial.server.of_service(trial.service), "it is still in the list")
    await box.close()


async def a_sandbox_that_nobody_wants_ends(trial: ContractTrial) -> None:
    name = trial.name()
    await trial.put(name, trial.wanted(ttl_s=SHORT_S))
    async with asyncio.timeout(SHORT_S + LATE_S):
        while (await trial.look(name)).status != 404:
            await asyncio.sleep(0.2)  # nothing tells when a sandbox of another machine ends


async def a_heartbeat_prolongs_it(trial: ContractTrial) -> None:
    name = trial.name()
    await trial.put(name, trial.wanted())
    before = await trial.left_s(name)
    async with asyncio.timeout(LATE_S):
        while await trial.left_s(name) > before - 1:
            await asyncio.sleep(0.2)
    lower = await trial.left_s(name)
    expect(not await trial.server.keep([name]), "a heartbeat that does not know it")
    expect(await trial.left_s(name) > lower, (before, lower))


async def an_open_link_keeps_it(trial: ContractTrial) -> None:
    name = trial.name()
    await trial.put(name, trial.wanted(ttl_s=SHORT_S))
    stream = await trial.server.link(name, [])
    try:
        await asyncio.sleep(SHORT_S * 2)  # time has to pass: nothing may happen in it
        expect((await trial.look(name)).status == 200, "it has ended")
    finally:
        stream.close()


async def nonsense_on_a_link_harms_nobody_else(trial: ContractTrial) -> None:
    box = await trial.box()
    loop = asyncio.get_running_loop()
    with await trial.server.link(box.handle.sandbox_id, []) as stream:
        await loop.sock_sendall(stream, b"\xff" * PIECE_BYTES)
        async with asyncio.timeout(LATE_S):
            with contextlib.suppress(ConnectionError):
                expect(await loop.sock_recv(stream, 1) == b"", "an answer to nonsense")
    await box.ping()


ROUTE_CHECKS = (
    it_says_who_it_is, a_wrong_token_is_refused, the_same_create_twice_is_one_sandbox,
    creates_at_the_same_time_are_one_sandbox, another_sandbox_of_one_name_is_refused, bad_bodies_and_names_are_refused,
    a_name_that_is_not_there_is_gone, a_list_has_the_services_own, a_deleted_sandbox_is_gone,
    a_sandbox_that_nobody_wants_ends, a_heartbeat_prolongs_it, an_open_link_keeps_it,
    nonsense_on_a_link_harms_nobody_else,
)  # fmt: skip
