"""Forms of names and addresses: the pattern that decides, and the words in which a refusal says it."""

from typing import Final

NAME: Final = r"^[A-Za-z0-9_.\-]{1,96}(?!\n)$"  # `$` alone lets a last newline pass
CURSOR: Final = r"^[0-9]{1,19}(-[0-9]{1,19})?(?!\n)$"  # Redis refuses any other stream id
ADDRESS: Final = r"^https?://[A-Za-z0-9\[][!-{}~]{0,500}(?!\n)$"
BEARER: Final = r"^[!-~]{8,512}(?!\n)$"
WORDS: Final = {
    NAME: "a name may have letters, digits, _ . -, at most 96 of them",
    CURSOR: "this is no cursor: take one from a result, or 0 for the beginning",
    ADDRESS: "an address begins with http:// or https:// and has no spaces and no |",
    BEARER: "a token has 8 to 512 visible ASCII characters",
}
