"""Images of a trajectory, and the ids that stand for them.

`check_placed` holds both ways: each place has an image and the ids of one, and outside of places no id stands for any.
"""

from collections.abc import Sequence

import msgspec


class PromptImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that the model was shown, as it was submitted."""

    kind: str  # image/png, image/jpeg or image/webp
    width: int
    height: int
    data: bytes


class PlacedImage(msgspec.Struct, frozen=True, kw_only=True):
    """Ids `[start, start + length)` of a segment, prompt and response, which stand for an image of its trajectory."""

    image: int  # its number there
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class Misplaced(ValueError):
    """The places of images, the ids and the images do not fit together."""


def check_placed(ids: Sequence[int], mask: Sequence[int], placed: Sequence[PlacedImage], images: int, pad: int) -> None:
    """`mask`: of the last ids, the response; `pad`: the id that stands for an image. Raises `Misplaced`."""
    before, prompt = 0, len(ids) - len(mask)
    for each in placed:
        where = f"[{each.start}, {each.end})"
        if not 0 <= each.image < images:
            raise Misplaced(f"{where} stands for image {each.image} of {images}")
        if not before <= each.start < each.end <= len(ids):
            raise Misplaced(f"{where} of an image, after token {before} of {len(ids)}")
        _nothing(ids, before, each.start, pad)
        if pad not in ids[each.start : each.end]:
            raise Misplaced(f"{where} stands for an image, and none of its ids is {pad}")
        if any(mask[max(0, each.start - prompt) : max(0, each.end - prompt)]):
            raise Misplaced(f"{where} stands for an image, and some of it was sampled")
        before = each.end
    _nothing(ids, before, len(ids), pad)


def _nothing(ids: Sequence[int], start: int, end: int, pad: int) -> None:
    found = next((at for at in range(start, end) if ids[at] == pad), None)
    if found is not None:
        raise Misplaced(f"token {found} stands for an image ({pad}), and none is placed there")
