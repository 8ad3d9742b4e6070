"""Names of months as systems of other languages write them in stamps: glibc's locales and CLDR's short forms."""

from __future__ import annotations

import calendar
from typing import Final

# glibc's localedata/locales: `abmon` and `mon`, which `dmesg -T`, `journalctl` and `date` print.
_NAMES: Final = (
    "jan january januar janvier janv enero ene janeiro gennaio gen januari янв января stycznia sty",
    "feb february februar février févr fév febrero fevereiro fev febbraio februari фев февраля lut lutego",
    "mar march märz mär mrz mars marzo março maart mrt мар марта marca",
    "apr april avril avr abril abr aprile апр апреля kwi kwietnia",
    "may mai mayo maio maggio mag mei maj май мая maja",
    "jun june juni juin junio junho giugno giu июн июня cze czerwca",
    "jul july juli juillet juil julio julho luglio lug июл июля lip lipca",
    "aug august août aoû agosto ago augustus augusti авг августа sie sierpnia",
    "sep sept september septembre septiembre setembro set settembre sett сен сент сентября wrz września",
    "oct october oktober okt octobre octubre outubro out ottobre ott окт октября paź października",
    "nov november novembre noviembre novembro ноя нояб ноября lis listopada",
    "dec december dezember dez décembre déc diciembre dic dezembro dicembre дек декабря gru grudnia",
)
_MONTHS: Final = {
    **{name: number for number, names in enumerate(_NAMES, 1) for name in names.split()},
    **{name.lower(): number for number, name in enumerate(calendar.month_abbr) if name},
}
_NUMBERED: Final = ("月", "월")  # Chinese, Japanese and Korean number them


def month_of(name: str) -> int:
    """The number of the month that `name` means in some language; 0 if it means none.

    Examples
    --------
    >>> month_of("3月"), month_of("Mär"), month_of("févr."), month_of("дек"), month_of("13月"), month_of("step")
    (3, 3, 2, 12, 0, 0)
    """
    number = name[:-1]
    if name.endswith(_NUMBERED) and number.isdecimal():
        return int(number) if 1 <= int(number) <= 12 else 0
    return _MONTHS.get(name.rstrip(".").lower(), 0)
