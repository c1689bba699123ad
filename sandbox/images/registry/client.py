"""Requests to a registry: redirects, tokens and logins, and the reasons why something cannot be had.

A login goes to the registry that it is for and to the token service that this one names; a redirect to another host
gets neither it nor a token.
"""

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import urlencode, urljoin, urlsplit

import aiohttp
import msgspec

from sandbox.errors import ImageUnavailable
from sandbox.images.registry.logins import Logins
from sandbox.images.registry.reference import RegistryPlace, is_loopback

MOST_REDIRECTS: Final = 5
MOST_JSON_BYTES: Final = 4 << 20
SMALL_S: Final = 120.0  # for a manifest with its logins, however slowly it comes
TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=20, sock_read=60)
_PARAMETER: Final = re.compile(r'(\w+)="([^"]*)"')
FAULTS: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)  # the last one: of addresses that are none


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class RegistryClient:
    """Gets from registries, over connections that it keeps."""

    def __init__(self, http: aiohttp.ClientSession, logins: Logins) -> None:
        self._http = http
        self._logins = logins
        self._authorized: dict[RegistryPlace, str] = {}  # the header that worked last

    async def small(self, place: RegistryPlace, path: str, accept: str) -> tuple[bytes, Mapping[str, str]]:
        """A manifest, and the headers of the answer."""
        try:
            async with asyncio.timeout(SMALL_S), self.get(place, path, {"Accept": accept}) as answer:
                return await _whole(answer, f"{place.base} {path}"), answer.headers
        except TimeoutError:
            raise ImageUnavailable(f"{place.base} {path}: no whole answer within {SMALL_S:.0f} s") from None

    @contextlib.asynccontextmanager
    async def get(
        self, place: RegistryPlace, path: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to `/v2/REPOSITORY/path`, 200 or 206. Raises `ImageUnavailable`."""
        url = f"{place.base}/v2/{place.repository}/{path}"
        try:
            answer = await self._asked(place, url, headers)
            if answer.status == 401:
                challenge = answer.headers.get("WWW-Authenticate", "")
                answer.close()
                self._authorized[place] = await self._authorization(place, challenge, url)
                answer = await self._asked(place, url, headers)
            try:
                if answer.status not in {200, 206}:
                    raise refusal(answer.status, url, place)
                yield answer
            finally:
                answer.close()
        except FAULTS as error:
            raise ImageUnavailable(f"{url} cannot be read: {type(error).__name__}: {error}") from error

    async def _asked(self, place: RegistryPlace, url: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Follows redirects by hand: the library's own rule for what travels with them may change."""
        secret = self._authorized.get(place)
        for _ in range(MOST_REDIRECTS):
            own = _origin(url) == _origin(place.base)
            sent = {**headers, "Authorization": secret} if secret and own else dict(headers)
            answer = await self._http.get(url, headers=sent, allow_redirects=False, timeout=TIMEOUT)
            if answer.status not in {301, 302, 303, 307, 308}:
                return answer
            target = urljoin(url, answer.headers.get("Location", ""))
            answer.close()
            _must_be_safe(target, place)
            url = target
        raise ImageUnavailable(f"{url} redirects more than {MOST_REDIRECTS} times", final=True)

    async def _authorization(self, place: RegistryPlace, challenge: str, url: str) -> str:
        """The header that the registry's challenge asks for."""
        kind, _, rest = challenge.partition(" ")
        login = self._logins.of(place.host)
        basic = None if login is None else f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"
        if kind.lower() == "basic" and basic:
            return basic
        told = dict(_PARAMETER.findall(rest))
        if kind.lower() != "bearer" or "realm" not in told:
            raise refusal(401, url, place)
        _must_be_safe(told["realm"], place)
        query = {name: told[name] for name in ("service", "scope") if name in told}
        query.setdefault("scope", f"repository:{place.repository}:pull")
        realm = f"{told['realm']}?{urlencode(query)}"
        headers = {"Authorization": basic} if basic else {}
        async with self._http.get(realm, headers=headers, allow_redirects=False, timeout=TIMEOUT) as answer:
            if answer.status != 200:
                raise refusal(answer.status, told["realm"], place)
            data = await _whole(answer, told["realm"])
        try:
            found = msgspec.json.decode(data, type=_Token)
        except msgspec.MsgspecError as error:
            raise ImageUnavailable(f"{told['realm']} answers no token: {error}") from error
        return f"Bearer {found.token or found.access_token}"


async def _whole(answer: aiohttp.ClientResponse, about: str) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > MOST_JSON_BYTES:
            raise ImageUnavailable(f"{about} answers more than {MOST_JSON_BYTES} bytes", final=True)
    return bytes(data)


def refusal(status: int, url: str, place: RegistryPlace) -> ImageUnavailable:
    """The error for an answer that is none."""
    if status in {401, 403}:
        what = f"no login of {place.host} is right for it: add one to the file that `login` names in PRORL_IMAGES"
    elif status == 404:
        what = "there is no such image: check its name and tag"
    else:
        what = "it is tried again" if status == 429 or status >= 500 else "it refuses the request"
    return ImageUnavailable(f"{url} answers {status}: {what}", final=status in {400, 401, 403, 404, 405, 410})


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def _must_be_safe(url: str, place: RegistryPlace) -> None:
    """A registry elsewhere can send nobody to this machine's own ports, nor to plain http."""
    scheme, netloc = _origin(url)
    if scheme == "https" and not is_loopback(netloc):
        return
    if scheme in {"http", "https"} and is_loopback(netloc) and is_loopback(place.host):
        return
    raise ImageUnavailable(f"{place.base} leads to {url}, which is no https address: it is not followed", final=True)
