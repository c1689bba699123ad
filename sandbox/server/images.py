"""Pictures that cells show: each becomes a file inside the sandbox, because the model reads text."""

from __future__ import annotations

import binascii
import contextlib
import os
from typing import Any

# What it is, the method by which a value draws itself, the ending of the file.
KINDS = (
    ("image/png", "_repr_png_", "png"),
    ("image/jpeg", "_repr_jpeg_", "jpg"),
    ("image/svg+xml", "_repr_svg_", "svg"),
    ("image/gif", "_repr_gif_", "gif"),
)
ENDINGS = {mime: ending for mime, _, ending in KINDS}
MOST_IN_A_CELL = 32


class Images:
    """The pictures of one kernel."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._shown: list[dict[str, Any]] = []
        self._count = 0

    def take(self) -> list[dict[str, Any]]:
        """Images that were shown since the last time."""
        shown, self._shown = self._shown, []
        return shown

    def draw(self, value: Any) -> str | None:
        """A line about a value that can draw itself; None for others."""
        for mime, method, _ in KINDS:
            drawer = getattr(type(value), method, None)
            data = None if drawer is None else drawer(value)
            if data is not None:
                return self.show({mime: data[0] if isinstance(data, tuple) else data})
        return None

    def show(self, bundle: dict[str, Any]) -> str | None:
        """Saves the first picture of a value's representations; a line that says where. None: there is no picture."""
        mime = next((mime for mime in ENDINGS if bundle.get(mime)), None)
        if mime is None:
            return None
        if len(self._shown) >= MOST_IN_A_CELL:
            return f"[{mime}: not kept, for a cell shows at most {MOST_IN_A_CELL} images]"
        data = _decoded(mime, bundle[mime])
        try:
            path = self._save(ENDINGS[mime], data)
        except OSError as error:
            return f"[{mime}: could not be saved: {error.strerror}]"
        self._shown.append({"path": path, "mime": mime, "size_bytes": len(data)})
        return f"[{mime}, {len(data)} bytes: {path}]"

    def _save(self, ending: str, data: bytes) -> str:
        os.makedirs(self._directory, exist_ok=True)
        while True:
            self._count += 1
            path = os.path.join(self._directory, f"{self._count}.{ending}")
            with contextlib.suppress(FileExistsError):  # of a kernel before this one
                with open(path, "xb") as stream:
                    stream.write(data)
                return path


def _decoded(mime: str, data: Any) -> bytes:
    """IPython gives pictures as bytes or as base64, drawings as text."""
    if isinstance(data, str):
        if mime == "image/svg+xml":
            return data.encode("utf-8", "replace")
        with contextlib.suppress(binascii.Error):
            return binascii.a2b_base64(data)
        return data.encode("utf-8", "replace")
    return bytes(data)
