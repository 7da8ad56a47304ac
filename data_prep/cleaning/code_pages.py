"""Slovene, Croatian and Serbian in Latin letters whose single-byte code page was taken for another (Èlovek pri¹el ¾e vèeraj), repaired.

Old pages have it: Windows 1250, Latin-2 and DOS 852 read as the code pages of western Europe, or as each other.  A text is read anew only if nothing but
č, ć, š, ž and đ comes of it, if it has none of the letters that it gains, and if the words that come of it speak for it.
"""

from __future__ import annotations

import re

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
