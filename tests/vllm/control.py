"""vLLM's own routes for new weights, as a trainer without our service calls them."""

from pathlib import Path
from urllib.parse import quote

import msgspec

from workers.inference.clients import InferenceClients


async def tell(clients: InferenceClients, address: str, route: str, **body: object) -> None:
    answer = await clients.transport.post(address, route, msgspec.json.encode(body))
    assert answer.status == 200, (route, answer)


async def swap(clients: InferenceClients, address: str, weights: Path, version: str, *, mode: str = "keep") -> None:
    """Other weights, from the next token on. The prefix cache is emptied, unless a request holds some of it."""
    await tell(clients, address, f"/pause?mode={quote(mode)}&clear_cache=false")
    await tell(clients, address, "/collective_rpc", method="reload_weights", kwargs={"weights_path": str(weights)})
    await tell(clients, address, "/update_weight_version", new_version=version)
    await tell(clients, address, "/reset_prefix_cache")
    await tell(clients, address, "/resume")
