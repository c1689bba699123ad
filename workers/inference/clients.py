"""The clients of all wire protocols over one transport: made once per worker process."""

from types import TracebackType
from typing import Final, Self

from prorl_mq.process.backend_keys import BackendKeys
from workers.inference.assignment import Endpoint, WireProtocol
from workers.inference.logprobs import exact, marked
from workers.inference.pictures import unsupported
from workers.inference.protocol import Completion, InferenceError
from workers.inference.protocols.abort import Aborter
from workers.inference.protocols.completions import Completions
from workers.inference.protocols.prorl_generate import ProrlGenerate
from workers.inference.protocols.sglang_generate import SglangGenerate
from workers.inference.protocols.spans import of_adapter
from workers.inference.protocols.vllm_generate import VllmGenerate
from workers.inference.request import BackendClient, GenerateRequest
from workers.inference.transport import HttpTransport

SHOWS_IMAGES: Final = frozenset({WireProtocol.VLLM_GENERATE, WireProtocol.SGLANG_GENERATE})


class InferenceClients:
    """Sends each request in the protocol of its backend."""

    def __init__(
        self,
        *,
        connect_s: float = 5.0,
        answer_s: float = 600.0,
        abort_s: float = 1.0,
        keys: BackendKeys | None = None,
    ) -> None:
        self.transport = HttpTransport(connect_s=connect_s, answer_s=answer_s, keys=keys)
        self._aborter = Aborter(self.transport, within_s=abort_s)
        self._clients: dict[WireProtocol, BackendClient] = {
            WireProtocol.VLLM_GENERATE: VllmGenerate(self.transport, self._aborter),
            WireProtocol.SGLANG_GENERATE: SglangGenerate(self.transport, self._aborter),
            WireProtocol.COMPLETIONS: Completions(self.transport),
            WireProtocol.PRORL_GENERATE: ProrlGenerate(self.transport),
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Lets aborts under way finish (bounded), then closes every connection. Idempotent."""
        await self._aborter.aclose()
        await self.transport.aclose()

    async def abort(self, backend: Endpoint, request_id: str) -> None:
        """Ends a call early: it answers with what is sampled so far, where the backend can do that."""
        await self._aborter.abort(backend, request_id)

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """Raises `InferenceError`. Cancelling the task stops the backend's work."""
        try:
            if request.pictures and backend.protocol not in SHOWS_IMAGES:
                raise unsupported(backend.address, backend.protocol)
            completion = await self._clients[backend.protocol].generate(backend, request)
        except InferenceError as error:
            raise self.transport.fixed(backend.address, error) from None
        if backend.adapter is not None:
            completion = of_adapter(completion, backend.adapter_version)
        return completion if exact(backend.logprobs, request) else marked(completion)
