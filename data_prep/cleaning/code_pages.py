"""Slovene, Croatian and Serbian in Latin letters whose single-byte code page was taken for another (Èlovek pri¹el ¾e vèeraj), repaired.

Old pages have it: Windows 1250, Latin-2 and DOS 852 read as the code pages of western Europe, or as each other.  A text is read anew only if nothing but
č, ć, š, ž and đ comes of it, if it has none of the letters that it gains, and if the words that come of it speak for it.
"""

from __future__ import annotations

import re

_LETTERS = frozenset("čćšžđČĆŠŽĐ")
_WRONG = ("cp1252", "latin-1", "cp1250", "iso8859-2")
_RIGHT = ("cp1250", "iso8859-2", "cp852")
# Places that words of western Europe do not have, in UTF-8: è before a vowel, signs that begin a word or stand inside it.
_VOWEL = "[aeiouAEIOU]"
_SIGNS = rf"[èæ]{_VOWEL}|æ(?!\w)|[a-z]Ð|[a-z]Đ[a-z]|È[a-z]|Æ[aeiou]|ð{_VOWEL}|[¹¾§¬¦©®†][a-z]|Ÿ[a-z]|ç[^aouAOUâôûãõœ\W]|[ąľź]{_VOWEL}|[\x80-\x9f][a-z]"
WRONG_PAGE = re.compile(
    rf"\xc3\xa6[ .,!?\n]|[a-z]\xc3\x90|[a-z]\xc4\x90[a-z]|[\xc3][\xa8\xa6\xb0]{_VOWEL}|\xc3\x88[a-z]|\xc3\x86[aeiou]|\xc2[\xb9\xbe\xa7\xac\xa6\xa9\xae\x80-\x9f][a-z]|\xe2\x80\xa0[a-z]"
    rf"|\xc5\xb8[a-z]|\xc3\xa7[b-eg-np-tv-z]|(?:\xc4[\x85\xbe]|\xc5\xba){_VOWEL}".encode("latin-1")
)
_PLACES = re.compile(_SIGNS)
_WORD = re.compile(r"[\w\x80-\x9f¹¾§¬¦©®†]+")
# Frequent words that have such a letter.
_KNOWN = frozenset(
    [
        "če",
        "že",
        "še",
        "več",
        "čas",
        "časa",
        "človek",
        "človeka",
        "ljudeh",
        "življenje",
        "življenja",
        "država",
        "države",
        "držav",
        "včeraj",
        "začel",
        "začeli",
        "začetek",
        "način",
        "načina",
        "reči",
        "rekoč",
        "oče",
        "očeta",
        "noč",
        "noči",
        "ponoči",
        "moč",
        "moči",
        "hiša",
        "hiše",
        "šel",
        "šla",
        "šli",
        "prišel",
        "prišla",
        "našel",
        "našla",
        "šola",
        "šole",
        "šest",
        "šestdeset",
        "štiri",
        "mož",
        "moža",
        "možno",
        "žena",
        "ženska",
        "ženske",
        "želi",
        "želel",
        "težko",
        "tež",
        "bližnji",
        "blizu",
        "možnost",
        "različne",
        "različnih",
        "rešitev",
        "društvo",
        "društva",
        "naš",
        "naša",
        "naše",
        "vaš",
        "vaša",
        "vaše",
        "nič",
        "nihče",
        "drugače",
        "veš",
        "vse",
        "veše",
        "zakaj",
        "dež",
        "češnje",
        "češ",
        "češki",
        "učitelj",
        "učenec",
        "učenci",
        "učil",
        "človeštvo",
        "slovenščina",
        "slovenščine",
        "hrvaški",
        "mož",
        "tržaški",
        "občina",
        "občine",
        "občin",
        "sodišče",
        "sodišča",
        "podjetij",
        "člen",
        "člena",
        "članek",
        "člani",
        "član",
        "odločba",
        "odločbe",
        "odloči",
        "določa",
        "določba",
        "določbe",
        "pritožba",
        "pritožbe",
        "tožba",
        "delež",
        "dolžan",
        "dolžnost",
        "služba",
        "službe",
        "službi",
        "množica",
        "će",
        "ću",
        "ćemo",
        "ćeš",
        "ćete",
        "čovjek",
        "čovjeka",
        "čovek",
        "čoveka",
        "što",
        "šta",
        "nešto",
        "zašto",
        "već",
        "još",
        "može",
        "mogućnost",
        "moguće",
        "kuća",
        "kuće",
        "kući",
        "noć",
        "noći",
        "moć",
        "život",
        "života",
        "životu",
        "država",
        "državi",
        "žena",
        "žene",
        "žele",
        "želim",
        "željeznica",
        "riječ",
        "riječi",
        "reč",
        "reči",
        "vrijeme",
        "također",
        "takođe",
        "između",
        "među",
        "gdje",
        "sljedeći",
        "sledeći",
        "općina",
        "općine",
        "opština",
        "način",
        "načini",
        "početak",
        "počeo",
        "počela",
        "došao",
        "došla",
        "otišao",
        "vidjeti",
        "činiti",
        "čini",
        "časti",
        "čak",
        "čija",
        "čiji",
        "čijih",
        "treći",
        "treće",
        "šef",
        "škola",
        "škole",
        "šest",
        "tisuća",
        "tisuće",
        "hiljadu",
        "odluka",
        "odlučio",
        "odlučila",
        "rješenje",
        "rešenje",
        "tuđi",
        "rođen",
        "rođena",
        "đak",
        "đaci",
        "građani",
        "građana",
        "građanin",
        "događaj",
        "događaji",
        "mlađi",
    ]
)
# Words of these languages that have none, and words of their neighbours.
_PLAIN = frozenset(
    [
        "je",
        "na",
        "za",
        "ki",
        "kot",
        "kao",
        "nije",
        "koji",
        "koja",
        "koje",
        "sam",
        "smo",
        "bo",
        "ga",
        "jih",
        "iz",
        "od",
        "pri",
        "ali",
        "ima",
        "bila",
        "bil",
        "bio",
        "samo",
        "kada",
        "kdaj",
        "v",
        "u",
        "ter",
        "tudi",
        "ovo",
        "taj",
        "ni",
        "kako",
        "tako",
        "kar",
        "tem",
        "tega",
        "ste",
        "biti",
        "jer",
        "ili",
        "sve",
        "svi",
    ]
)
_FOREIGN = frozenset(
    [
        "il",
        "lo",
        "la",
        "di",
        "che",
        "del",
        "della",
        "per",
        "un",
        "una",
        "non",
        "gli",
        "dei",
        "con",
        "è",
        "le",
        "les",
        "des",
        "est",
        "une",
        "et",
        "dans",
        "the",
        "of",
        "and",
        "is",
        "that",
        "with",
        "der",
        "die",
        "das",
        "und",
        "den",
        "og",
        "det",
        "er",
        "het",
        "een",
        "el",
        "los",
        "las",
        "por",
        "que",
    ]
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
