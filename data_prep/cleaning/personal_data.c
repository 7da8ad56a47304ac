/* The hot loop of data_prep.cleaning.personal_data: places of a text where a pattern of the built-in settings may match.
 *
 * Built with the system's compiler at first use (common/native.py).  What is found is what may be: personal_data.py asks the patterns themselves.
 * What is no ASCII may be anything.
 */
#include <stdint.h>

#include "utf8_words.h"

enum {
    E_MAIL = 1 << 0, IBAN = 1 << 1, CARD = 1 << 2, EMSO = 1 << 3, CODICE_FISCALE = 1 << 4, OIB = 1 << 5, MACHINE_ADDRESS = 1 << 6, TELEPHONE = 1 << 7,
    TELEPHONE_NUMBER = 1 << 8, CARD_NUMBER = 1 << 9, TAX_NUMBER = 1 << 10, VAT_NUMBER = 1 << 11, IP_ADDRESS = 1 << 12, IPV6_ADDRESS = 1 << 13,
    MOBILE_NUMBER = 1 << 14
};

typedef struct {
    const uint8_t *start, *end;
    uint32_t wanted; /* patterns, as above */
    int64_t *places; /* room for so many */
    uint32_t *patterns;
    int64_t number, room;
} Found;

static inline int is_capital(uint8_t c) { return c >= 'A' && c <= 'Z'; }
static inline int is_word(uint8_t c) { return is_letter(c) || is_digit(c) || c == '_'; }
static inline uint8_t at(const Found *f, const uint8_t *p) { return p >= f->start && p < f->end ? *p : ' '; }

static void add(Found *f, const uint8_t *place, uint32_t pattern) {
    if (!(f->wanted & pattern)) return;
    if (f->number < f->room) {
        f->places[f->number] = place - f->start;
        f->patterns[f->number] = pattern;
    }
    f->number++;
}

/* How many digits follow, from a place on. */
static int digits_at(const Found *f, const uint8_t *p) {
    int number = 0;
    while (is_digit(at(f, p + number))) number++;
    return number;
}

/* Whether a number may begin behind a byte: it follows no word, and none of some marks. */
static int may_begin(uint8_t before, const char *marks) {
    for (; *marks; marks++)
        if (before == (uint8_t)*marks) return 0;
    return !is_word(before);
}

/* Whether eight digits follow, with what stands between those of a telephone number. */
static int is_long(const Found *f, const uint8_t *p) {
    for (int digits = 0;; p++) {
        uint8_t c = at(f, p);
        if (is_digit(c) && ++digits == 8) return 1;
        if (p >= f->end || !(is_digit(c) || c == ' ' || c == '-' || c == '.' || c == '/' || c == '(' || c == ')')) return 0;
    }
}

static void look_at_digits(Found *f, const uint8_t *p, int number) {
    uint8_t before = at(f, p - 1);
    if (number == 13) add(f, p, EMSO);
    if (number == 16) add(f, p, CARD_NUMBER);
    if (number == 8 || number == 11) { /* perhaps with a country before it */
        int country = is_letter(before) || (before == ' ' && is_letter(at(f, p - 2)));
        const uint8_t *start = p - (country ? (before == ' ') + 2 : 0);
        if (number == 8) add(f, p, TAX_NUMBER);
        if (number == 8 && country) add(f, start, TAX_NUMBER);
        if (number == 11) add(f, p, OIB), add(f, p, VAT_NUMBER);
        if (number == 11 && country) add(f, start, VAT_NUMBER);
    }
    if (number == 4) {
        const uint8_t *next = p + 4;
        int groups = 1;
        while (groups < 4 && (at(f, next) == ' ' || at(f, next) == '-') && digits_at(f, next + 1) == 4) groups++, next += 5;
        if (groups == 4) add(f, p, CARD);
    }
    if (number < 4 && at(f, p + number) == '.' && may_begin(before, ".-")) {
        const uint8_t *next = p + number;
        int groups = 1;
        while (groups < 4 && at(f, next) == '.' && is_digit(at(f, next + 1))) groups++, next += 1 + digits_at(f, next + 1);
        if (groups == 4) add(f, p, MACHINE_ADDRESS), add(f, p, IP_ADDRESS);
    }
    if (before == '+' && *p != '0' && is_long(f, p)) {
        add(f, p - 1, TELEPHONE);
        if (at(f, p - 2) == '(') add(f, p - 2, TELEPHONE);
    }
    if (*p == '3' && number > 2 && may_begin(before, "./,-") && is_long(f, p)) add(f, p, MOBILE_NUMBER);
    if (*p == '0' && number > 1 && may_begin(before, "./,-") && is_long(f, p)) {
        if (p[1] == '0') add(f, p, TELEPHONE);
        if (p[1] == '0' && before == '(') add(f, p - 1, TELEPHONE);
        add(f, p, TELEPHONE_NUMBER);
        if (before == '(') add(f, p - 1, TELEPHONE_NUMBER);
    }
}

static void look_at_letters(Found *f, const uint8_t *p) {
    const uint8_t *next = p;
    if (is_capital(p[0]) && is_capital(at(f, p + 1)) && is_digit(at(f, p + 2)) && is_digit(at(f, p + 3))) {
        int groups = 0;
        for (next = p + 4; groups < 2; groups++) {
            next += at(f, next) == ' ' ? 1 : at(f, next) == 0xC2 && at(f, next + 1) == 0xA0 ? 2 : 0;
            for (int i = 0; i < 4; i++, next++)
                if (!is_capital(at(f, next)) && !is_digit(at(f, next))) groups = 3;
        }
        if (groups == 2) add(f, p, IBAN);
    }
    for (next = p; is_word(at(f, next)); next++) {}
    if (next - p != 16 || !is_letter(p[8]) || !is_letter(p[11]) || !is_letter(p[15])) return;
    for (int i = 0; i < 6; i++)
        if (!is_letter(p[i])) return;
    add(f, p, CODICE_FISCALE);
}

/* Whether an address may be around an @: a name before it, and behind it a dot with two letters or a bracket. */
static int may_be_address(const Found *f, const uint8_t *p) {
    uint8_t before = at(f, p - 1);
    if (!is_word(before) && before != '.' && before != '+' && before != '-' && before < 0x80) return 0;
    if (at(f, p + 1) == '[') return 1; /* an address literal */
    for (p++; is_word(at(f, p)) || at(f, p) == '-' || at(f, p) == '.'; p++)
        if (*p == '.' && is_letter(at(f, p + 1)) && is_letter(at(f, p + 2))) return 1;
    return 0;
}

static inline int is_hex(uint8_t c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* Two colons between groups of up to four hexadecimal digits follow. */
static int may_be_ipv6(const Found *f, const uint8_t *p) {
    int colons = 0, digits = 0;
    for (; is_hex(at(f, p)) || at(f, p) == ':'; p++) {
        if (*p == ':') colons++, digits = 0;
        else if (++digits > 4) return 0;
    }
    return colons > 1;
}

/* The places where one of the wanted patterns may match, and which; returns how many there are, of which the first ones have room. */
int64_t personal_places(const uint8_t *text, int64_t size, uint32_t wanted, int64_t *places, uint32_t *patterns, int64_t room) {
    Found f = {text, text + size, wanted, places, patterns, 0, room};
    for (const uint8_t *p = text; p < f.end; p++) {
        if (is_hex(*p) && !is_word(at(&f, p - 1)) && at(&f, p - 1) != ':' && may_be_ipv6(&f, p)) add(&f, p, IPV6_ADDRESS);
        if (is_digit(*p)) {
            int number = digits_at(&f, p);
            look_at_digits(&f, p, number);
            p += number - 1;
        } else if (is_letter(*p) && !is_word(at(&f, p - 1))) {
            look_at_letters(&f, p);
        } else if (*p == '@' && may_be_address(&f, p)) {
            add(&f, p, E_MAIL);
        }
    }
    return f.number;
}
