"""English names of the languages that langdetect knows, for whoever gives a name in place of a code (ISO 639-1)."""

_NAMES = """
af afrikaans, ar arabic, bg bulgarian, bn bengali, ca catalan, cs czech, cy welsh, da danish, de german, el greek,
en english, es spanish, et estonian, fa persian, fi finnish, fr french, gu gujarati, he hebrew, hi hindi, hr croatian,
hu hungarian, id indonesian, it italian, ja japanese, kn kannada, ko korean, lt lithuanian, lv latvian, mk macedonian,
ml malayalam, mr marathi, ne nepali, nl dutch, no norwegian, pa punjabi, pl polish, pt portuguese, ro romanian,
ru russian, sk slovak, sl slovenian, so somali, sq albanian, sv swedish, sw swahili, ta tamil, te telugu, th thai,
tl tagalog, tr turkish, uk ukrainian, ur urdu, vi vietnamese, zh-cn chinese
"""
CODES = {english: code for code, english in (pair.split() for pair in _NAMES.split(","))}


def code_of(name: str) -> str:
    """The code of a language by its English name in any case; `name` itself where it is none."""
    return CODES.get(name.casefold(), name)
