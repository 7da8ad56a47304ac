"""Two hundred lines of what stands around a text on web pages, of our own making: twenty cookie notices and twenty lines of menus in each of five languages."""

from __future__ import annotations

COOKIES = {
    "sl": """Spletno mesto uporablja piškotke za boljšo uporabniško izkušnjo.
Z obiskom in uporabo spletnega mesta soglašate s piškotki.
Piškotke uporabljamo za analizo obiska in prikaz oglasov.
Za delovanje te strani potrebujemo piškotke. Več o tem
Strinjam se z uporabo piškotkov
Sprejmi vse piškotke
Samo nujni piškotki
Uredi nastavitve piškotkov
Naša stran uporablja piškotke. Ali jih dovolite?
Preberite več o piškotkih in varstvu zasebnosti
Ta spletna stran uporablja piškotke in podobne tehnologije.
Obvestilo o piškotkih: z nadaljevanjem brskanja se strinjate z njihovo uporabo.
Uporabljamo lastne piškotke in piškotke tretjih oseb.
Zavrni neobvezne piškotke
Analitični piškotki nam pomagajo razumeti, kako obiskovalci uporabljajo stran.
Izberite, katere piškotke dovolite
Piškotki nam omogočajo, da vam ponudimo boljše storitve.
S klikom na gumb »V redu« dovoljujete namestitev piškotkov.
Shrani izbiro piškotkov
Oglaševalski piškotki so izklopljeni. Vklopi""",
    "hr": """Ova web stranica koristi kolačiće radi boljeg korisničkog iskustva.
Nastavkom pregledavanja prihvaćate korištenje kolačića.
Koristimo kolačiće za analizu posjeta.
Slažem se s uporabom kolačića
Prihvati sve kolačiće
Samo nužni kolačići
Postavke kolačića
Pročitajte više o kolačićima
Naša stranica koristi kolačiće i slične tehnologije.
Odbij neobavezne kolačiće
Spremi odabir kolačića
Obavijest o kolačićima
Koristimo vlastite kolačiće i kolačiće trećih strana.
Kolačići nam pomažu da poboljšamo naše usluge.
Klikom na gumb dopuštate spremanje kolačića.
Odaberite koje kolačiće dopuštate
Za rad ove stranice potrebni su kolačići.
Marketinški kolačići su isključeni
Da bi ova stranica ispravno radila, na vaše računalo spremamo kolačiće.
Politika kolačića""",
    "sr": """Овај сајт користи колачиће ради бољег корисничког искуства.
Наставком коришћења прихватате колачиће.
Користимо колачиће за анализу посета.
Слажем се са употребом колачића
Прихвати све колачиће
Само неопходни колачићи
Подешавања колачића
Сазнајте више о колачићима
Наша страница користи колачиће.
Одбиј колачиће
Ovaj sajt koristi kolačiće radi boljeg korisničkog iskustva.
Nastavkom korišćenja prihvatate kolačiće.
Koristimo kolačiće za analizu poseta.
Slažem se sa upotrebom kolačića
Prihvati sve kolačiće
Samo neophodni kolačići
Podešavanja kolačića
Saznajte više o kolačićima
Politika kolačića
Kolačići nam pomažu da poboljšamo usluge.""",
    "it": """Questo sito utilizza cookie per migliorare l'esperienza di navigazione.
Proseguendo la navigazione acconsenti all'uso dei cookie.
Usiamo i cookie per analizzare il traffico.
Accetta tutti i cookie
Solo cookie necessari
Impostazioni dei cookie
Informativa sui cookie
Leggi la cookie policy
Rifiuta i cookie non essenziali
Salva le preferenze sui cookie
Utilizziamo cookie propri e di terze parti.
I cookie ci aiutano a fornire i nostri servizi.
Chiudendo questo banner accetti l'uso dei cookie.
Gestisci il consenso ai cookie
Per il funzionamento del sito sono necessari i cookie tecnici.
Il nostro sito usa cookie e tecnologie simili.
Scegli quali cookie consentire
Acconsento all'uso dei cookie
Maggiori informazioni sui cookie
Cookie di marketing: disattivati""",
    "en": """This website uses cookies to improve your experience.
By continuing to browse you agree to our use of cookies.
We use cookies to analyse traffic.
Accept all cookies
Necessary cookies only
Cookie settings
Cookie policy
Read more about cookies
Reject non-essential cookies
Save cookie preferences
We use our own and third-party cookies.
Cookies help us deliver our services.
By closing this banner you consent to cookies.
Manage cookie consent
Cookies are required for this site to work.
Our site uses cookies and similar technologies.
Choose which cookies you allow
I agree to the use of cookies
More information about cookies
Marketing cookies are off""",
}
MENUS = {
    "sl": """Domov | O nas | Storitve | Kontakt
Domov > Novice > Kultura
Domov
O podjetju
Izdelki
Storitve
Cenik
Reference
Zaposlitev
Pogosta vprašanja
Splošni pogoji
Varstvo osebnih podatkov
Prijava na e-novice
Vpis
Uporabniško ime
Pozabljeno geslo?
Arhiv
Išči
Naprej
Nazaj""",
    "hr": """Naslovnica | O nama | Usluge | Kontakt
Početna > Vijesti > Kultura
Naslovnica
O nama
Proizvodi
Usluge
Cjenik
Reference
Zaposlenje
Česta pitanja
Opći uvjeti
Zaštita osobnih podataka
Prijava na newsletter
Prijava
Korisničko ime
Zaboravljena lozinka?
Arhiva
Traži
Dalje
Natrag""",
    "sr": """Почетна | О нама | Услуге | Контакт
Почетна > Вести > Култура
Почетна
О нама
Производи
Услуге
Ценовник
Референце
Запослење
Честа питања
Početna | O nama | Usluge | Kontakt
Početna
Proizvodi
Usluge
Cenovnik
Reference
Zaposlenje
Česta pitanja
Korisničko ime
Zaboravljena lozinka?""",
    "it": """Home | Chi siamo | Servizi | Contatti
Home > Notizie > Cultura
Home
Azienda
Prodotti
Servizi
Listino prezzi
Referenze
Lavora con noi
Domande frequenti
Termini e condizioni
Informativa sulla privacy
Iscriviti alla newsletter
Accedi
Nome utente
Password dimenticata?
Archivio
Cerca
Avanti
Indietro""",
    "en": """Home | About us | Services | Contact
Home > News > Culture
Home
Company
Products
Services
Pricing
References
Careers
Frequently asked questions
Terms and conditions
Privacy policy
Subscribe to our newsletter
Log in
Username
Forgot password?
Archive
Search
Next
Previous""",
}
