"""Checks whether a process of this machine answers over HTTP."""

import ssl

import httpx


async def answers(url: str, token: str = "") -> bool:
    """One look. No certificate authorities are loaded: only loopback is asked, and that costs 20 ms or more."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False, headers=headers, verify=plain) as client:
            return (await client.get(url)).is_success
    except httpx.HTTPError:
        return False
