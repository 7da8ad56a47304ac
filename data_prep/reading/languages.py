"""Codes of languages."""

from __future__ import annotations

import re

# ISO 639-1 by the first letter, with the withdrawn sh.  Codes of three letters (ISO 639-3) are 7,900 and are not listed.
_TWO_LETTERS = (
    r"a[abefkmnrsvyz]|b[aegimnors]|c[aehorsuvy]|d[aevz]|e[elnostu]|f[afijory]|g[adlnuv]|h[aeiortuyz]|i[adegikostu]|"
    r"j[av]|k[agijklmnorsuvwy]|l[abginotuv]|m[ghiklnrsty]|n[abdeglnorvy]|o[cjmrs]|p[ailst]|q[u]|r[mnouw]|"
    r"s[acdeghiklmnoqrstuvw]|t[aeghiklnorstwy]|u[gkrz]|v[eio]|w[ao]|x[h]|y[io]|z[ahu]"
)
_CODE = re.compile(rf"({_TWO_LETTERS}|[a-z]{{3}})([-_][A-Za-z]+)*")


def is_language(code: str) -> bool:
    """Whether a text is a code of ISO 639, perhaps with more behind a dash or an underscore (sr-Latn, srp_Latn); every code of three letters passes."""
    return _CODE.fullmatch(code) is not None
