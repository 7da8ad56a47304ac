"""Mojibake: UTF-8 text that was decoded with another encoding (Ã© for é, Å¡ for š), repaired where that is certain.

UTF-8 has so little freedom that characters which, written in a code page, are well-formed UTF-8 of letters of the same alphabets are hardly ever
anything else.  The exceptions that real text has (É…, „JÄ“) are left alone: see `_is_certain`.  It may have happened several times over.
The package ftfy does this for whole lines and asks whether a line looks wrong; here only the wrong characters are looked at, so a line may be
wrong in part, and code pages of central Europe (ÄŤ for č) and Cyrillic are taken alike.

So is Slovene, Croatian and Serbian in Latin letters whose single-byte code page was taken for another (Èlovek pri¹el ¾e vèeraj), as old pages have it:
Windows 1250, Latin-2 and DOS 852 read as the code pages of western Europe, or as each other.  A text is read anew only if nothing but
č, ć, š, ž and đ comes of it, if it has none of the letters that it gains, and if the words that come of it speak for it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

_PAGES = ("cp1252", "cp1250", "latin-1", "iso8859-2", "cp1251", "cp1254")
# What begins with C6 to CA is letters that hardly any text has, and in code pages these are the capitals Č, Ć, È, É of others.
_LEAD_BYTES, _FOLLOWER_BYTES = (*range(0xC2, 0xC6), *range(0xCB, 0xF5)), range(0x80, 0xC0)
_MAX_TIMES = 3
# What decoded text may be made of: controls (of text that is wrong twice over), letters of Latin, Greek, Cyrillic, Armenian, Hebrew, Arabic and all scripts of three bytes but private use.
_PLAUSIBLE = re.compile(
    "[\u0080-\u017f\u0192\u0218-\u021b\u02c6-\u02dd\u0300-\u036f\u0370-\u052f\u0531-\u058f\u05d0-\u05ea\u0600-\u06ff\u0900-\u1fff\u2010-\u203a\u2044"
    "\u20a0-\u20bf\u2100-\u2bff\u2e80-\ud7ff\uf900-\ufaff\ufb00-\ufdff\ufe10-\ufe6f\ufeff-\uffef\U00010000-\U0003ffff]+"
)
_SEQUENCES = re.compile(b"(?:[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})+")
_LATIN = re.compile("[\u0080-\u024f\u2010-\u2bff]+")
_TYPOGRAPHY = frozenset("‘’‚“”„†‡•…–—˜›‹»«´¨°·")


# Wrong text in this code page is capitals and rare letters (РџСЂРёРІРµС‚), and pairs of these are words in real Serbian.
_CYRILLIC = re.compile("[а-я]{4}")


class _Page(NamedTuple):
    """A code page: the characters that what is more than ASCII in UTF-8 begins with in it, and what is done with those that it lacks."""

    leads: frozenset[str]
    missing: frozenset[str]
    errors: str


@cache
def _page(name: str) -> _Page:
    # Bytes that a code page leaves out come through as control characters, in browsers and in what reads as they do.
    missing = frozenset(chr(byte) for byte in range(0x80, 0xA0) if _character(byte, name) == chr(byte))

    def byte_for_each(error: UnicodeError) -> tuple[bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        characters = error.object[error.start : error.end]
        return bytes(ord(character) if character in missing else ord("?") for character in characters), error.end

    codecs.register_error(f"scion-{name}", byte_for_each)
    return _Page(frozenset(_character(byte, name) for byte in _LEAD_BYTES), missing, f"scion-{name}")


def _character(byte: int, page: str) -> str:
    try:
        return bytes([byte]).decode(page)
    except UnicodeDecodeError:
        return chr(byte)  # what a code page leaves out comes through as a control character, in browsers and in what reads as they do


def _all_of(places: Iterable[int]) -> frozenset[str]:
    return frozenset(c for byte in places for page in _PAGES for c in (_character(byte, page), chr(byte)))


# Where no character of the first is followed by one of the third, nor one of the second by two, nothing is to be repaired.
LEADS, LONG_LEADS, FOLLOWERS = (
    _all_of(byte for byte in _LEAD_BYTES if byte < 0xE0),
    _all_of(byte for byte in _LEAD_BYTES if byte >= 0xE0),
    _all_of(_FOLLOWER_BYTES),
)
# The second half of these was lost: a byte that the code page has no character for, or a no-break space that became a space.
_LOST = {"â€": "”", "Ã": "à"}
_LOST_HALF = re.compile(f"â€(?![{''.join(_character(byte, 'cp1252') for byte in _FOLLOWER_BYTES)}])|Ã(?=[ \u00a0])\u00a0?")


def repair(text: str) -> str:
    """The text as it was meant; the same text where nothing is certainly wrong."""
    text = repair_code_page(text)
    for _ in range(_MAX_TIMES):
        characters = frozenset(text)
        best = max(
            (_repaired(text, name) for name in _PAGES if _page(name).leads & characters), key=lambda found: found[0], default=(0, text)
        )
        if not best[0]:
            return text
        text = best[1]
    return text


def leftovers(text: str) -> int:
    """How many places still look wrong: a capital letter that such text begins with, inside a word of small letters."""
    return len(_INSIDE.findall(text))


CAPITALS = "ÂÃÄÅĂĹĐŃÐÑ"
# Begins with the capital: what a match begins with is looked for in one loop, what stands before it would be at every character.
_INSIDE = re.compile(f"[{CAPITALS}](?<=[a-zà-ÿ][{CAPITALS}])(?![A-ZÀ-Þ])")


def _repaired(text: str, name: str) -> tuple[int, str]:
    """How many characters fewer a text has when it is taken for UTF-8 in a code page, and that text."""
    if name == "cp1251" and _CYRILLIC.search(text):
        return 0, text
    page = _page(name)
    # A byte for each character; Python's own way with those that have none is much faster.
    data = text.encode(name, page.errors if name != "latin-1" and not page.missing.isdisjoint(text) else "replace")
    places = [(found.span(), _decoded(found[0])) for found in _SEQUENCES.finditer(data)]
    certain = any(decoded is not None and _is_certain(text, start, stop, decoded) for (start, stop), decoded in places)
    # Pairs of letters of another alphabet, which are not words yet: of Latin text that is wrong twice over.
    certain |= sum(len(decoded) for _, decoded in places if decoded and len(decoded) > 1 and not _LATIN.fullmatch(decoded)) > 3
    pieces, end = [], 0
    for (start, stop), decoded in places if certain else ():
        if decoded is not None:
            pieces += [text[end:start], decoded]
            end = stop
    if not pieces:
        return 0, text
    result = "".join([*pieces, text[end:]])
    if name == "cp1252":
        result = _LOST_HALF.sub(lambda found: _LOST[found[0].rstrip("\u00a0")], result)
    return len(text) - len(result), result


def _decoded(sequence: bytes) -> str | None:
    try:
        decoded = sequence.decode()
    except UnicodeDecodeError:
        return None
    return decoded if _PLAUSIBLE.fullmatch(decoded) else None


def _is_certain(text: str, start: int, stop: int, decoded: str) -> bool:
    """Whether a place is wrong for itself, so that the others of the text are too: what is not Latin has a word of it, and a mark that may end a word is not after a capital one."""
    if not _LATIN.fullmatch(decoded):
        return len(decoded) >= 3
    if stop - start > 2:
        return True
    inside = start > 0 and text[start - 1].islower()
    return inside or text[start + 1] not in _TYPOGRAPHY


# Of single-byte code pages.
_LETTERS = frozenset("čćšžđČĆŠŽĐ")
_WRONG = ("cp1252", "latin-1", "cp1250", "iso8859-2")
_RIGHT = ("cp1250", "iso8859-2", "cp852")
# Places that words of western Europe do not have: è before a vowel, signs that begin a word or stand inside it.  What each begins with is looked for in one
# loop, what stands before it would be at every character.
_PLACES = re.compile(
    "[èæðąľźçÈŸÆÐĐ¹¾§¬¦©®†\x80-\x9f]"
    r"(?:(?<=[èæðąľź])[aeiouAEIOU]|(?<=æ)(?!\w)|(?<=ç)[^aouAOUâôûãõœ\W]|(?<=[ÈŸ¹¾§¬¦©®†\x80-\x9f])[a-z]|(?<=Æ)[aeiou]|(?<=[a-z]Ð)|(?<=[a-z]Đ)[a-z])"
)
_WORD = re.compile(r"[\w\x80-\x9f¹¾§¬¦©®†]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Frequent words that have such a letter.
_KNOWN = _words(
    """
    če že še več čas časa človek človeka ljudeh življenje življenja država države držav včeraj začel začeli začetek način načina reči rekoč oče
    očeta noč noči ponoči moč moči hiša hiše šel šla šli prišel prišla našel našla šola šole šest šestdeset štiri mož moža možno žena ženska
    ženske želi želel težko tež bližnji blizu možnost različne različnih rešitev društvo društva naš naša naše vaš vaša vaše nič nihče drugače
    veš vse veše zakaj dež češnje češ češki učitelj učenec učenci učil človeštvo slovenščina slovenščine hrvaški mož tržaški občina občine občin
    sodišče sodišča podjetij člen člena članek člani član odločba odločbe odloči določa določba določbe pritožba pritožbe tožba delež dolžan
    dolžnost služba službe službi množica će ću ćemo ćeš ćete čovjek čovjeka čovek čoveka što šta nešto zašto već još može mogućnost moguće kuća
    kuće kući noć noći moć život života životu država državi žena žene žele želim željeznica riječ riječi reč reči vrijeme također takođe između
    među gdje sljedeći sledeći općina općine opština način načini početak počeo počela došao došla otišao vidjeti činiti čini časti čak čija
    čiji čijih treći treće šef škola škole šest tisuća tisuće hiljadu odluka odlučio odlučila rješenje rešenje tuđi rođen rođena đak đaci
    građani građana građanin događaj događaji mlađi
    """
)
# Words of these languages that have none, and words of their neighbours.
_PLAIN = _words(
    """
    je na za ki kot kao nije koji koja koje sam smo bo ga jih iz od pri ali ima bila bil bio samo kada kdaj v u ter tudi ovo taj ni kako tako
    kar tem tega ste biti jer ili sve svi
    """
)
_FOREIGN = _words(
    """
    il lo la di che del della per un una non gli dei con è le les des est une et dans the of and is that with der die das und den og det er het
    een el los las por que
    """
)


def repair_code_page(text: str) -> str:
    """The text as it was meant; the same text where that is not certain."""
    if not _PLACES.search(text):
        return text
    before = set(_WORD.findall(text.lower()))
    plain = len(before & _PLAIN)
    if len(before & _FOREIGN) > plain // 3:
        return text
    found: list[tuple[int, int, str]] = []
    for wrong in _WRONG:
        for right in _RIGHT:
            if wrong != right and (read := _read_anew(text, wrong, right)) is not None:
                places, known = len(_PLACES.findall(read)), len((set(_WORD.findall(read.lower())) - before) & _KNOWN)
                if known or (plain and not places):
                    found.append((places, -known, read))
    return min(found)[2] if found else text


def _read_anew(text: str, wrong: str, right: str) -> str | None:
    """The text with the bytes of one code page taken for those of another; None if that makes more of it than the letters."""
    pieces = []
    for character in text:
        if character.isascii() or character in "„“”‚‘’–—…":  # put in by who has the page on his screen
            pieces.append(character)
            continue
        try:
            pieces.append(_byte(character, wrong).decode(right))
        except UnicodeError:
            return None
    read = "".join(pieces)
    gained = {new for old, new in zip(text, read, strict=True) if old != new}
    return read if gained and gained <= _LETTERS and gained.isdisjoint(text) else None


def _byte(character: str, page: str) -> bytes:
    """As browsers do: what a code page leaves out comes through as a control character."""
    return bytes([ord(character)]) if "\x80" <= character <= "\x9f" else character.encode(page)
