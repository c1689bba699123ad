"""A server with a model in it that speaks vLLM's token routes: `/inference/v1/generate` and `/v1/completions`.

It computes every token in full, and then says what the script has in place of what it sampled. `GET /bench` gives its
counters, `POST /bench` sets them back and forgets all texts. Prints its address when it is ready.
"""

import argparse
import asyncio
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import torch
import uvloop

from bench.gpu.decoding import Stepper
from bench.gpu.engine import Call, Engine
from bench.gpu.meter import Meter
from bench.gpu.model import SHAPES, Qwen2
from bench.gpu.script import Script
from prorl_mq.process.http_server import HttpRequest, HttpResponse, HttpServer
from prorl_mq.testing.wire import (
    SERVER_PREFIX,
    FakeCompletion,
    GenerateCall,
    RequestError,
    error_answer,
    read_call,
    write_answer,
)

MODEL = "policy"
VERSION = "default"


class Server:
    """Requests in, calls of the engine out."""

    def __init__(self, engine: Engine, script: Script, meter: Meter, context: int, about: dict[str, Any]) -> None:
        self.http = HttpServer(self._answer)
        self._engine, self._script, self._meter, self._context, self._about = engine, script, meter, context, about
        self._calls: dict[int, Call] = {}  # by number: probes share one id
        self._since = time.perf_counter()
        self._count = 0

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        """A request that breaks the server is answered, too: else its client waits for nothing."""
        try:
            return await self._handle(request)
        except Exception as error:
            traceback.print_exc()
            return error_answer(500, f"{request.path}: {error!r}")

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        if self._engine.failed is not None:
            return error_answer(500, f"the engine has failed: {self._engine.failed!r}")
        match request.path:
            case "/inference/v1/generate" | "/v1/completions":
                return await self._generate(request)
            case "/health":
                return HttpResponse()
            case "/v1/models":
                return _json({"data": [{"id": MODEL, "max_model_len": self._context}]})
            case "/metrics":
                waiting = len(self._calls)
                return HttpResponse(body=f"vllm:num_requests_running {waiting}\n".encode(), content_type="text/plain")
            case "/inference/v1/abort_requests":
                names = msgspec.json.decode(request.body)["request_ids"]
                for call in self._calls.values():
                    call.ended |= SERVER_PREFIX + call.request_id in names
                return HttpResponse()
            case "/bench":
                return self._bench(request)
            case _:
                return error_answer(404, "Not Found")

    def _bench(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            if self._calls:
                return error_answer(409, f"{len(self._calls)} requests are in flight: wait for them, then reset")
            self._engine.reset()
            self._meter.reset()
            self._since = time.perf_counter()
        counted = msgspec.to_builtins(self._engine.counters)
        wall_s = time.perf_counter() - self._since
        return _json({"wall_s": wall_s, **counted, **self._meter.means(), "about": self._about})

    async def _generate(self, request: HttpRequest) -> HttpResponse:
        number = self._count = self._count + 1
        try:
            asked = read_call(request.path, request.body, request.headers.get("x-request-id"), f"r{number}")
            call = self._call(asked)
        except RequestError as error:
            return error_answer(400, str(error))
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        call.done = lambda _: loop.call_soon_threadsafe(done.set)
        self._calls[number] = call
        self._engine.submit(call)
        try:
            await done.wait()
        except asyncio.CancelledError:
            call.ended = True
            raise
        finally:
            del self._calls[number]
        said = FakeCompletion(
            ids=call.ids, logprobs=call.logprobs, finish_reason=call.finish, cached_tokens=call.cached,
            versions=[(VERSION, 0, len(call.ids))] if call.ids else [],
        )  # fmt: skip
        return HttpResponse(body=write_answer(asked, said))

    def _call(self, asked: GenerateCall) -> Call:
        """Raises `RequestError` for what this server does not sample."""
        params, room = asked.params, self._context - len(asked.prompt_ids)
        if room <= 0:
            raise RequestError(f"maximum context length is {self._context} tokens")
        if params.top_p < 1 or params.top_k > 1 or not params.temperature > 0:
            raise RequestError("this server samples at a temperature above 0 without top_p, and with no top_k but 1")
        scripted = self._script.reply(asked.prompt_ids)
        return Call(
            request_id=asked.request_id, prompt=asked.prompt_ids, max_tokens=min(room, params.max_tokens or room),
            done=lambda _: None, forced=scripted.ids if scripted else (), last=bool(scripted and scripted.last),
            temperature=params.temperature, greedy=params.top_k == 1, stop_ids=tuple(params.stop_token_ids),
        )  # fmt: skip


def _json(value: object) -> HttpResponse:
    return HttpResponse(body=msgspec.json.encode(value))


async def _serve(given: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Qwen2(SHAPES[given.shape], given.slots, given.context, device, dtype)
    stepper = Stepper(model)
    about = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": str(torch.__version__),
        "shape": given.shape, "parameters": model.parameters, "dtype": str(dtype), "slots": given.slots,
        "context": given.context, "turns": given.turns, "tokens": given.tokens,
    }  # fmt: skip
    about["capture_s"] = round(stepper.capture(), 2)
    engine = Engine(stepper, given.slots)
    engine.start()
    script = Script(given.tokenizer, turns=given.turns, tokens=given.tokens)
    with Meter() as meter:
        server = Server(engine, script, meter, given.context, about)
        await server.http.start(given.port)
        print(f"http://127.0.0.1:{server.http.port}", flush=True)
        await stopped.wait()
        await server.http.stop()
    engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.server", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory with tokenizer.json, of ChatML")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1.5b")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--context", type=int, default=4096, help="places of a slot (%(default)s)")
    parser.add_argument("--turns", type=int, default=8, help="completions of a conversation (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of a completion, on average (%(default)s)")
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
