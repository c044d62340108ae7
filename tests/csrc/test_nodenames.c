/* SPDX-License-Identifier: Apache-2.0 */
/* test_nodenames.c -- names in JSON: which texts are plain, and what is found and written of them.
 */
#include "check.h"
#include "scheduler/nodenames.h"

#define MANY 20000

static const struct row {
    const char *text;
    int64_t count;
    const char *why;
} rows[] = {
    {"", 0, "nothing is no name"},
    {"  ", 0, "nor are spaces"},
    {"\"\"", 1, "a name without letters"},
    {"\"a\"", 1, "one"},
    {"\"a\",\"b\"", 2, "two"},
    {" \"a\" , \"b\" ", 2, "with spaces"},
    {"\",\",\"[]{}:\"", 2, "signs within quotes are letters"},
    {"\"a\",", -1, "a comma without a name behind it"},
    {",\"a\"", -1, "or before it"},
    {"\"a\"\"b\"", -1, "no comma"},
    {"\"a\",,\"b\"", -1, "two commas"},
    {"\"a", -1, "no end"},
    {"a", -1, "no quotes"},
    {"\"a\"]", -1, "more than a list"},
    {"\"a\",null", -1, "what is no name"},
    {"\"a\",[\"b\"]", -1, "a list in a list"},
    {"\"a\\\"\"", -1, "an escape"},
    {"\"a\\u0062\"", -1, "another one"},
    {"\"\xc3\xb6\"", -1, "no ASCII"},
    {"\"a\tb\"", -1, "a letter that JSON has not"},
    {"\"a\",\n\"b\"", -1, "lines are for others to read"},
    {"\"\x7f\"", -1, "as is what cannot be printed"},
};

static void test_texts(void)
{
    for (size_t at = 0; at < sizeof(rows) / sizeof(*rows); at++)
        CHECK_EQUAL(rows[at].why, nodenames_count(rows[at].text, strlen(rows[at].text)),
                    rows[at].count);
    CHECK_EQUAL("nothing behind the end counts", nodenames_count("\"a\",\"b\"", 3), 1);
    CHECK_EQUAL("a NUL is no letter", nodenames_count("\"a\0\"", 4), -1);
}

static void test_codes(void)
{
    static const char text[] = "\"b\",\"\",\"abcdefghi\",\"abcdefgh\",\"b\", \"c\"";
    static const uint8_t codes[] = {7, 8, 9};
    struct nodenames *table = nodenames_new();
    uint8_t found[6];

    nodenames_add(table, "abcdefgh", 8, 2);
    nodenames_add(table, "b", 1, 0);
    nodenames_add(table, "", 0, 1);
    nodenames_add(table, "c", 1, 3);
    nodenames_look(table, text, strlen(text), codes, sizeof(codes), 1, found);
    CHECK("each has its code, and who has no number or none of those the other",
          !memcmp(found, "\7\10\1\11\7\1", sizeof(found)));
    nodenames_free(table);
}

static void test_forms(void)
{
    static const char text[] = "\"a\" ,\"b\",\"c\",\"a\"";
    static const uint8_t found[] = {0, 1, 2, 0};
    static const struct nodenames_form forms[3] = {
        {"<", ">", 1, 1}, {NULL, NULL, 0, 0}, {"", ", ", 0, 2}};
    static const char expected[] = "<\"a\">\"c\", <\"a\">";
    char out[sizeof(expected)];

    CHECK_EQUAL("it is said how much it is",
                nodenames_write(text, strlen(text), found, forms, NULL), strlen(expected));
    nodenames_write(text, strlen(text), found, forms, out);
    CHECK("each in its form or not at all", !memcmp(out, expected, strlen(expected)));
}

static void test_many(void)
{
    static uint8_t codes[MANY], found[2 * MANY];
    static char text[2 * MANY * 16];
    struct nodenames *table = nodenames_new();
    size_t size = 0;
    int added = 0, right = 0;

    for (unsigned at = 0; at < 2 * MANY; at++) {
        char *name = text + size + 1;
        int length = sprintf(text + size, "\"node-%u\",", at) - 3;

        size += (size_t) length + 3;
        if (at < MANY)
            added += !nodenames_add(table, name, (uint32_t) length, at);
        codes[at % MANY] = (uint8_t) (at % MANY % 251);
    }
    nodenames_look(table, text, size, codes, MANY, 255, found);
    for (unsigned at = 0; at < 2 * MANY; at++)
        right += found[at] == (at < MANY ? at % 251 : 255);
    CHECK_EQUAL("all are taken, however many", added, MANY);
    CHECK_EQUAL("and found again, and no others", right, 2 * MANY);
    nodenames_free(table);
}

int main(void)
{
    test_texts();
    test_codes();
    test_forms();
    test_many();
    return check_end();
}
