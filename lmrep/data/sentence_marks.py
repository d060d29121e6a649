"""Characters that end sentences: the property Sentence_Terminal of Unicode 17 (PropList.txt), in two sets, since some
scripts put no space after a sentence, and the signs that Latin scripts share also stand inside of sentences."""

# Of many scripts, such as the danda (U+0964), U+061F, U+06D4, the Armenian, Ethiopic, Khmer and Burmese full stops and
# those of Chinese and Japanese. The Tibetan shads (U+0F0D, U+0F0E), which the property lacks, are added.
UNSPACED = """
    0589 061D-061F 06D4 0700-0702 07F9 0837 0839 083D-083E 0964-0965 0F0D-0F0E 104A-104B 1362 1367-1368 166E 1735-1736
    17D4-17D5 1803 1809 1944-1945 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B 1B5E-1B5F 1B7D-1B7F 1C3B-1C3C 1C7E-1C7F 2CF9-2CFB 3002
    A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE12 FE15-FE16 FE56-FE57 FF01
    FF0E FF1F FF61
"""
SUPPLEMENTARY = """
    10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239
    1123B-1123C 112A9 113D4-113D5 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944 11946 11A42-11A43
    11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16D6E-16D6F 16E98 1BC9F 1DA88
"""
# Shared by Latin scripts, with the ellipsis, which the property lacks.
SPACED = "0021 002E 003F 2024 2026 203C-203D 2047-2049 2E2E 2E3C 2E53-2E54 2E60-2E61 FE52"


def character_class(ranges: str) -> str:
    """The characters of hexadecimal ranges, for a set [...] of a regular expression."""
    return "".join("-".join(rf"\U{int(end, 16):08x}" for end in each.split("-")) for each in ranges.split())
