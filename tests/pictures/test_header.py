"""What is an image is read off its first bytes; the rest is refused before anything is decoded."""

import base64
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.schema.images.header import MAX_BYTES, MAX_IMAGES, MAX_PIXELS, MAX_SEGMENTS, ImageRefused, shape_of
from prorl_mq.schema.images.pixels import ImageUnreadable, decoded
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.images.rows import bytes_of, has_images, taken_out
from tests.pictures.seeing import drawn, picture

KINDS = ("PNG", "JPEG", "WEBP")
URL = f"data:image/png;base64,{base64.b64encode(drawn(4, 4)).decode()}"


def png(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG by hand, whose header says what it likes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def orientation(number: int) -> Any:
    from PIL import Image

    made = Image.Exif()
    made[0x0112] = number
    return made


@pytest.mark.parametrize(
    ("kind", "about"),
    [
        ("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": orientation(1)}),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("width", "height"), [(1, 1), (300, 17), (257, 1023)])
def test_the_size_in_the_first_bytes_is_the_one_that_pillow_decodes(
    kind: str, about: dict[str, Any], width: int, height: int
) -> None:
    data = drawn(width, height, "red", kind, **about)
    found = shape_of(data)
    assert found == (f"image/{kind.lower()}", width, height)
    image = PromptImage(kind=found.kind, width=found.width, height=found.height, data=data)
    assert decoded(image).size == (width, height)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "begin as no PNG"),
        (b"GIF89a" + bytes(60), "begin as no PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "begin as no PNG"),
        (b"\x89PNG\r\n\x1a\n", "begin as no PNG"),
        (b"\xff\xd8\xff" + b"\xff" * 5000, "begin as no PNG"),
        (b"\xff\xd8\xff\xe0\x00\x00" * 1000, "begin as no PNG"),
        (b"RIFF\0\0\0\0WEBPVP8X", "begin as no PNG"),
        (png(0, 10), "0 by 10 pixels"),
        (png(100_000, 100_000), "are allowed"),
        (png(1 << 30, 1), "are allowed"),
        (png(2, 2) + bytes(MAX_BYTES), "scale it down"),
    ],
    ids=[
        "nothing",
        "GIF",
        "SVG",
        "a PNG's start",
        "a JPEG's padding",
        "a JPEG's empty parts",
        "a WebP's start",
        "no width",
        "10 gigapixels",
        "one long line",
        "9 MB",
    ],
)
def test_what_is_no_image_or_too_large_is_refused_by_name(data: bytes, said: str) -> None:
    with pytest.raises(ImageRefused, match=said):
        shape_of(data)


JPEG = drawn(30, 20, "red", "JPEG")


def test_segments_in_front_of_a_jpegs_size_are_many_and_not_without_limit() -> None:
    """Each is a step in Python. Long ones are none of bytes: a colour profile has megabytes."""
    long = b"\xff\xe2\xff\xff" + bytes((1 << 16) - 3)
    for front in (b"\xff\xe0\x00\x02" * (MAX_SEGMENTS - 20), long * 60, b"\xff" * (4 << 20)):
        assert shape_of(JPEG[:2] + front + JPEG[2:]) == ("image/jpeg", 30, 20)
    for each in (b"\xff\xe0\x00\x02", b"\xff\xe0\x00\x00", b"\xff\x01", b"\xff" * 9 + b"\x01"):
        with pytest.raises(ImageRefused, match=f"more than {MAX_SEGMENTS} segments in front of its size"):
            shape_of(JPEG[:2] + each * MAX_SEGMENTS + JPEG[2:])


@pytest.mark.parametrize(
    ("data", "readable"),
    [
        (drawn(300, 150)[:-80], False),
        (drawn(300, 150, "red", "JPEG")[:200], False),
        (drawn(64, 64, "red", "WEBP")[:40], False),
        (png(64, 64, b"\0" * 10), False),  # less than its header says
        (png(4096, 4096, b""), False),
        (png(64, 64, bytes(16 << 20)), True),  # a bomb: 16 MiB in 16 kB, for 12 kB of pixels
    ],
    ids=["cut PNG", "cut JPEG", "cut WebP", "short PNG", "empty PNG", "bomb"],
)
def test_what_begins_as_an_image_and_is_none_is_the_rows_fault_or_its_pixels_alone(data: bytes, readable: bool) -> None:
    """Never another exception, and never more pixels than its header says."""
    shape = shape_of(data)
    image = PromptImage(kind=shape.kind, width=shape.width, height=shape.height, data=data)
    if readable:
        assert decoded(image, 3).size == (shape.width, shape.height)
        return
    with pytest.raises(ImageUnreadable, match="image 3"):
        decoded(image, 3)


@given(data=st.binary(max_size=200), start=st.sampled_from([b"", *(drawn(9, 5, "red", kind) for kind in KINDS)]))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_an_image_or_refused_and_never_more(data: bytes, start: bytes) -> None:
    """Bytes put over the beginning of an image, cut anywhere."""
    sent = data + start[len(data) :]
    try:
        shape = shape_of(sent)
        found = decoded(PromptImage(kind=shape.kind, width=shape.width, height=shape.height, data=sent))
    except (ImageRefused, ImageUnreadable):
        return
    assert found.mode == "RGB"
    assert found.width * found.height <= MAX_PIXELS


def test_every_mode_of_pixels_becomes_rgb_or_is_unreadable() -> None:
    for mode in ("1", "L", "LA", "P", "I;16", "RGBA", "CMYK"):
        data = drawn(8, 8, 0, "JPEG" if mode == "CMYK" else "PNG", mode)  # type: ignore[arg-type]
        image = PromptImage(kind=shape_of(data).kind, width=8, height=8, data=data)
        assert decoded(image).mode == "RGB"


def test_an_image_that_says_two_sizes_is_refused() -> None:
    """The control: as it says at its start, it is decoded."""
    true = picture(30, 20)
    assert decoded(true).size == (30, 20)
    with pytest.raises(ImageUnreadable, match="has 30 by 20 pixels, and says 30 by 21"):
        decoded(PromptImage(kind=true.kind, width=30, height=21, data=true.data))


def test_a_second_header_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header that is looked at says 2 by 2 pixels, a later one 8,000 by 8,000. The control: what is decoded is
    counted, also of an image with one header.
    """
    from PIL import ImageFile

    loaded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def counted(self: Any) -> Any:
        loaded.append(self.size)
        return load(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", counted)
    small, large = png(2, 2, bytes(14)), png(8000, 8000)
    data = small[:33] + large[8:33] + small[33:]
    shape = shape_of(data)
    with pytest.raises(ImageUnreadable, match="has 8000 by 8000 pixels, and says 2 by 2 at its start"):
        decoded(PromptImage(kind=shape.kind, width=shape.width, height=shape.height, data=data))
    assert not loaded
    decoded(PromptImage(kind="image/png", width=2, height=2, data=small))
    assert set(loaded) == {(2, 2)}


def test_an_upright_image_and_one_on_white_is_what_the_model_sees() -> None:
    assert decoded(picture(30, 20, "red", "JPEG", exif=orientation(6))).size == (20, 30)
    glass = picture(4, 4, (0, 0, 0, 0), mode="RGBA")  # type: ignore[arg-type]
    assert decoded(glass).getpixel((0, 0)) == (255, 255, 255)
    assert decoded(picture(4, 4, 0, mode="L")).mode == "RGB"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": [{"role": "user", "content": "a <image> b"}], "images": [URL]},
        {"problem": "a <image> b", "images": [{"bytes": drawn(4, 4), "path": None}]},
        {"prompt": [{"role": "user", "content": [
            {"type": "text", "text": "a "}, {"type": "image_url", "image_url": {"url": URL}},
            {"type": "text", "text": " b"},
        ]}]},
        {"prompt": [{"role": "user", "content": [
            {"type": "input_text", "text": "a "}, {"type": "input_image", "image_url": URL},
            {"type": "text", "text": " b"},
        ]}]},
        {"prompt": [{"role": "user", "content": [
            {"type": "text", "text": "a "}, {"type": "image", "image": drawn(4, 4)}, {"type": "text", "text": " b"},
        ]}]},
    ],
    ids=["verl", "bytes", "chat", "responses", "parts with bytes"],
)  # fmt: skip
def test_every_form_of_a_row_becomes_the_same_text_and_bytes(payload: dict[str, Any]) -> None:
    assert has_images(payload)
    plain, listed = taken_out(payload)
    text = plain.get("problem") or plain["prompt"][0]["content"]
    assert (text, bytes_of(listed[0]).data) == ("a <image> b", drawn(4, 4))


def test_a_row_of_text_has_none() -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "2 + 2 <image>?"},
        {"images": []},
        {"images": None},
        {"prompt": [{"content": "x"}]},
    ]
    for payload in rows:
        assert not has_images(payload)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"prompt": "no mark", "images": [URL]}, "1 images, and its text has 0 times <image>"),
        ({"prompt": "<image><image>", "images": [URL]}, "2 times <image>"),
        ({"prompt": "<image>" * 10_000, "images": [URL] * 10_000}, f"10000 images; {MAX_IMAGES} are allowed"),
        ({"prompt": "<image>", "images": "https://a.b/c.png"}, "is no list"),
        ({"prompt": [{"content": [{"type": "image", "image": URL}]}], "images": [URL]}, "use one of them"),
        ({"prompt": [{"content": [{"type": "image", "image": URL}, {"type": "video"}]}]}, "part of type 'video'"),
        ({"prompt": [{"content": [{"type": "image", "image": URL}, {"type": "text", "text": "<image>"}]}]}, "2 times"),
    ],
    ids=range(7),
)
def test_rows_that_contradict_themselves_are_refused(payload: dict[str, Any], said: str) -> None:
    with pytest.raises(ImageRefused, match=said):
        taken_out(payload)


@pytest.mark.parametrize("kind", [["image"], {}, {"a": 1}, 7, None, True], ids=repr)
def test_a_part_may_say_anything_of_its_type(kind: object) -> None:
    """Requests have lists and objects there, too. The control: looked up in a set, a list is a `TypeError`."""
    odd = {"type": kind, "image": URL}
    assert not has_images({"prompt": [{"content": [odd]}]})
    with pytest.raises(ImageRefused, match="a part of type"):
        taken_out({"prompt": [{"content": [{"type": "image", "image": URL}, odd]}]})


@pytest.mark.parametrize("part", ["image", 7, None, ["image"]], ids=repr)
def test_what_is_no_part_is_refused_beside_an_image(part: object) -> None:
    with pytest.raises(ImageRefused, match="a part of type"):
        taken_out({"prompt": [{"content": [part, {"type": "image", "image": URL}]}]})


@pytest.mark.parametrize(
    "image",
    [
        "http://169.254.169.254/latest/meta-data/", "https://example.org/a.png", "file:///etc/passwd", "/etc/passwd",
        "ftp://host/a.png", "data:image/png,notbase64", "data:text/html;base64,AAAA", "", 7, None,
        {"path": "/etc/passwd"},
        "data:image/png;base64,@@@@", "data:image/png;base64,ÄÖÜß", "data:image/png;base64," + "A" * (MAX_BYTES * 2),
    ],
    ids=range(14),
)  # fmt: skip
def test_nothing_is_fetched_and_what_is_no_data_url_is_refused(image: object) -> None:
    with pytest.raises(ImageRefused):
        bytes_of(image)
