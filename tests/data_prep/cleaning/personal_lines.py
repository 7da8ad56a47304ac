"""Labelled lines with and without personal data in five languages: sentences of our own, each with every one of its numbers."""

from __future__ import annotations

SLOVENE = (
    "(+386) 1 123 45 67",
    "+386 41 234 567",
    "00386 1 234 56 78",
    "01/234 56 78",
    "01 / 234 56 78",
    "(01) 234 56 78",
    "041 234 567",
    "031-234-567",
)
CROATIAN = ("098 123 456", "091/123-4567", "01 2345 678", "+385 98 123 456", "(+385) 1 2345 678", "00385 1 2345678")
SERBIAN = ("011 123 4567", "064/123-4567", "063/123-456", "+381 11 123 4567", "(+381) 64 123 4567")
ITALIAN = ("347 1234567", "347/1234567", "3471234567", "340 123 45 67", "0577 123456", "06-12345678", "+39 347 123 4567", "049/1234567")
BRITISH = ("+44 20 7946 0958", "020 7946 0958", "0044 20 7946 0958", "07700 900123")
DATES = (
    "05.11.2021",
    "5. 11. 2021",
    "05. 11. 2021",
    "05.11.2021 do 08.11.2021",
    "05/11/2021",
    "05-11-2021",
    "2021-11-05",
    "5.11.2021",
    "03/04/1975",
)
VERSIONS = ("2.7.13.1024", "2.7.13.10", "4.19.200.1", "10.0.19045.1", "1.1.1.1")
# Sentences in which {} is personal data, and what may stand there: numbers made up, with right check digits where they have some.
RIGHT = {
    "Telefon: {}": SLOVENE,
    "Pokličite nas na tel. {} vsak dan.": SLOVENE,
    "GSM {}, doma zvečer": SLOVENE,
    "Naš faks je {}.": SLOVENE,
    "Davčna številka: {}": ("12345679", "SI 12345679", "SI12345679"),
    "Račun {} pri banki": ("SI56 1910 0000 0123 438", "SI56191000000123438", "IT60X0542811101000000123456"),
    "Njen EMŠO je {}.": ("0101006500006",),
    "Pišite na {} še danes.": ("ana.k@primer.si", "info@primer.co.uk", "x_1+y@sub.primer.hr", "ana.k@[192.168.1.7]"),
    "cell. {}": ITALIAN,
    "Chiamate il numero di telefono {} per prenotare.": ITALIAN,
    "Tel: {}": ITALIAN,
    "Codice fiscale {} del signor Rossi": ("RSSMRA85T10A562S", "rssmra85t10a562s"),
    "Partita IVA: {}": ("00743110157", "IT00743110157"),
    "P.IVA {}, Milano": ("00743110157",),
    "Nazovite na telefon {} radnim danom.": CROATIAN,
    "Mob: {}": CROATIAN,
    "OIB: {}": ("33392005961",),
    "Kontakt: {}, Zagreb": CROATIAN,
    "Тел. {} од 8 до 16 часова": SERBIAN,
    "Контакт телефон: {}": SERBIAN,
    "ЈМБГ {} је погрешно уписан": ("0101006500006",),
    "Пишите на {} сваког дана.": ("pera@primer.rs",),
    "Call us on our phone {} today.": BRITISH,
    "Mobile: {}": BRITISH,
    "Her card no. {} was stolen.": ("4111111111111111", "4111 1111 1111 1111", "5500005555555559"),
    "The server at {} did not answer.": ("8.8.4.4", "193.2.1.66", "2a00:1450:4001:81b::200e"),
    "It was posted from {} at night.": ("84.255.203.17", "2001:4860:4860::8888"),
}
# Sentences near whose numbers stand letters of those words, and numbers that are none of a person.
WRONG = {
    "Mobilni telefon sem kupil {}.": DATES,
    "Kontakt z bolnikom je bil {}.": DATES,
    "A fax arrived on {}.": DATES,
    "Il telefono fu inventato il {}.": DATES,
    "Telefonski pogovor dne {} je bil kratek.": DATES,
    "Телефон је купљен {}.": DATES,
    "Nazovite prije {}.": DATES,
    "Viber je postao poznat {}.": DATES,
    "Seminar bo v hotelu Slon od {} dalje.": DATES,
    "Avtomobil je bil registriran {}.": DATES,
    "Telegram je prispel {}, mobilizacija dan pozneje.": DATES,
    "Roditelji se javljaju do {}.": DATES,
    "Učitelj Janez je rojen {} v Kopru.": DATES,
    "Telefon je bil izumljen {}.": DATES,
    "L'automobile fu venduta il {}.": DATES,
    "L'hotel, costruito tra il {}, chiude.": ("01/02/1998 e il 03/04/1999", "01.02.1998"),
    "La telenovela andò in onda il {}.": DATES,
    "Хотел је отворен од {} године.": DATES,
    "Аутомобил је купљен {} у Нишу.": DATES,
    "Учитељица је рођена {}.": DATES,
    "Excellent hotel, visited {}": DATES,
    "The automobile was sold on {} in Leeds.": DATES,
    "Immobile for days, he woke on {}.": DATES,
    "Nature, ISSN {}": ("0028-0836", "1476-4687"),
    "Telos, ISSN {}, mobilni arhiv": ("0090-6514", "0028-0836"),
    "ISBN {}, mehka vezava": ("978-961-01-0123-4", "961-01-0123-4", "978-86-7346-123-4"),
    "Poglavje {} opisuje varnost.": ("5.3.2.1", "1.1.1.1", "12.4.3.2", "5.3.2.1.4"),
    "Section {} of the manual": ("5.3.2.1", "8.8.4.4", "2.10.100.3"),
    "Različica {} je izšla včeraj.": VERSIONS,
    "Verzija {} ispravlja greške.": VERSIONS,
    "Верзија {} исправља грешке.": VERSIONS,
    "Versione {} del programma": VERSIONS,
    "Mestni svet je za hotel namenil {} EUR.": ("1.234.567,89", "12.345.678", "1 234 567", "0,55"),
    "Občina ima {} prebivalcev.": ("295.504", "1 234 567", "12345678"),
    "La città conta {} abitanti.": ("1.352.000", "12 345 678", "12345678901"),
    "Grad ima {} stanovnika.": ("767.131", "12 345 678"),
    "Град има {} становника.": ("1.166.763", "12 345 678"),
    "The town has {} people.": ("1,234,567", "12345678"),
    "Uradni list RS, št. {}": ("33/91-I, 42/97, 66/2000", "01/2001", "100/2013, 12/2014"),
    "Zakon je začel veljati leta {}.": ("1999–2004", "2001/2002", "2010-2020"),
    "Narodne novine, br. {}": ("56/90, 135/97, 8/98", "113/2000", "76/10 i 85/10"),
    "Службени гласник РС, бр. {}": ("98/2006", "83/06, 115/21"),
    "Gazzetta Ufficiale n. {} del mese": ("174/2003", "123 del 29/07/2003"),
    "Vlak odpelje ob {} s tretjega tira.": ("12:30", "06:15:00", "12.30"),
    "Inventarna številka {} v muzeju": ("0123456789", "2020/0012345", "00012345678"),
    "Broj predmeta {} na sudu": ("00112233445", "012-34567"),
    "Il numero d'ordine {} è partito.": ("0012345678", "3471234567", "340/1234567"),
    "Order {} was shipped from the hotel.": ("0012345678", "4111111111111111"),
    "Koordinati sta {} stopinj.": ("46.0511, 14.5051", "45° 49' 12\" 15° 58' 40\""),
    "Razmerje je {} v prid domačih.": ("3:2:1", "25:21, 25:18", "1:0"),
    "MAC naslov je {} in ni skrivnost.": ("00:1A:2B:3C:4D:5E",),
    "Lokalno omrežje uporablja {} za vse.": ("192.168.0.1", "10.0.0.1", "fe80::1:2"),
    "Številka {} ne pomeni nič.": ("33392005961", "12345679", "0101006500007", "4111 1111 1111 1112"),
}


def lines() -> list[tuple[str, bool]]:
    """Each line, and whether it holds personal data."""
    return [
        (text.format(number), right)
        for table, right in ((RIGHT, True), (WRONG, False))
        for text, numbers in table.items()
        for number in numbers
    ]
