/* SPDX-License-Identifier: Apache-2.0 */
/* test_argv.c -- parsing of an argv in a JSON array of strings. */
#include "check.h"
#include "programs/sidecar/arguments.h"

enum { MOST = 4 };

static char text[256];
static char *argv[MOST + 1];

static long parse_bytes(const char *bytes, size_t length)
{
    memset(text, '!', sizeof(text));
    memcpy(text, bytes, length);
    return arguments_parse(text, length, argv, MOST);
}

static long parse(const char *string)
{
    return parse_bytes(string, strlen(string));
}

static int is_one(const char *string, const char *meaning)
{
    return parse(string) == 1 && strcmp(argv[0], meaning) == 0 && !argv[1];
}

static void arguments_are_split(void)
{
    CHECK_EQUAL("three", parse(" [ \"a b\" , \"\",\n\t\"c\" ] \r"), 3);
    CHECK("as they are",
          !strcmp(argv[0], "a b") && !strcmp(argv[1], "") && !strcmp(argv[2], "c") && !argv[3]);
    CHECK_EQUAL("as many as there is room for", parse("[\"1\",\"2\",\"3\",\"4\"]"), MOST);
    CHECK_EQUAL("and not one more", parse("[\"1\",\"2\",\"3\",\"4\",\"5\"]"), -1);
}

static void json_escapes_are_decoded(void)
{
    CHECK("short ones", is_one("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]", "\"\\/\b\f\n\r\t"));
    CHECK("a unit of ASCII", is_one("[\"\\u0041\\u007f\"]", "A\x7f"));
    CHECK("two bytes", is_one("[\"\\u00e9\\u07FF\"]", "\xc3\xa9\xdf\xbf"));
    CHECK("three bytes", is_one("[\"\\u0800\\uffff\"]", "\xe0\xa0\x80\xef\xbf\xbf"));
    CHECK("two units are four bytes",
          is_one("[\"\\ud800\\udc00\\udbff\\udfff\"]", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
    CHECK("bytes that are not escaped stay", is_one("[\"\xc3\xa9\xff\"]", "\xc3\xa9\xff"));
}

static void invalid_argv_is_rejected(void)
{
    static const char *const wrong[] = {
        "",
        "[",
        "[]",
        "[\"a\"",
        "[\"a\",]",
        "[\"a\" 1]",
        "[1]",
        "[[\"a\"]]",
        "{\"a\": 1}",
        "\"a\"",
        "[\"a]",
        "[\"a\\\"]",
        "[\"\\x\"]",
        "[\"\\u12\"]",
        "[\"\\u12g4\"]",
        "[\"\n\"]",
        "[\"\\ud800\"]",
        "[\"\\udc00\"]",
        "[\"\\ud800\\u0041\"]",
        "[\"a\"] x",
        "[\"\\",
        "[\"\\u",
        "[\"\\u0000\"]",
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        CHECK(wrong[i], parse(wrong[i]) == -1);
    CHECK("a NUL in it", parse_bytes("[\"a\0b\"]", 7) == -1);
    CHECK("a surrogate cut short", parse("[\"\\ud800\\u\"]") == -1);
}

int main(void)
{
    arguments_are_split();
    json_escapes_are_decoded();
    invalid_argv_is_rejected();
    return check_end();
}
