"""Functions of C are named module_verb_object, where the module is the file that has the function.

The prefix is the name of the header or of the file that defines the function; the name of a file
whose parts these are (``flight`` of ``flight_lane.h``); or the folder's, where the files of the
folder are one module (``nvml``). Underscores in names of files do not count.
"""

import collections
import pathlib
import re

import pure

SOURCES = pure.ROOT / "csrc"
HELPERS = "helpers of the language, like likely() and max()"
KEPT = {  # by the function, or by the header of all these functions
    "core/compiler.h": HELPERS,
    "core/number.h": HELPERS,
    "sim_transfer_takes": "exported: the replay program finds it by dlsym()",
}
COMMENT_OR_LITERAL = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.DOTALL
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*", re.MULTILINE)
FUNCTION = re.compile(r"\b([a-z]\w*)\s*\((?:[^;{}()]|\([^()]*\))*\)\s*([;{])")
TYPEDEF = re.compile(r"\btypedef\b[^;]*;")


def functions(text, end):
    """Return the functions of a C file that are declared (*end* is ;) or defined ({)."""
    text = DIRECTIVE.sub("", COMMENT_OR_LITERAL.sub('""', text))
    depth, outside = 0, []
    for part in re.split(r"([{}])", text):
        depth -= part == "}"
        if not depth:
            outside.append(part)
        depth += part == "{"
    found = FUNCTION.findall(TYPEDEF.sub("", "".join(outside)))
    return [name for name, what in found if what in end and not name.startswith("__")]


def is_of(name, file):
    """Whether a function's prefix is *file*, or the module that *file* is a part of."""
    words, parts = name.split("_"), file.stem.split("_")
    modules = {"".join(parts), file.parent.name}
    for count in range(1, len(parts)):
        whole = "_".join(parts[:count])
        if (file.parent / f"{whole}.c").exists():
            modules.add(whole.replace("_", ""))
    return any("".join(words[:count]) in modules for count in range(1, len(words) + 1))


def test_the_prefix_of_each_function_is_its_file():
    definitions = collections.defaultdict(list)
    for file in SOURCES.rglob("*.c"):
        for name in functions(file.read_text(), "{"):
            definitions[name, file.relative_to(SOURCES).parts[0]].append(file)
    wrong, kept, count = [], set(), 0
    for header in sorted(SOURCES.rglob("*.h")):
        place = header.relative_to(SOURCES)
        for name in functions(header.read_text(), ";{"):
            count += 1
            if any(is_of(name, file) for file in (header, *definitions[name, place.parts[0]])):
                continue
            reason = {name, place.as_posix()} & set(KEPT)
            kept |= reason
            if not reason:
                wrong.append(f"{place}: {name}")
    assert count > 900
    assert wrong == []
    assert kept == set(KEPT)


def test_functions_are_found_as_declared_and_as_defined():
    text = """
    #define CHECK(x) check(x);
    typedef void visit(int lane);
    int flight_begin(struct lane *lane, int (*done)(void)); /* like flight_end(); */
    static inline int flight_count(void)
    {
        return other('{');
    }
    """
    assert functions(text, ";") == ["flight_begin"]
    assert functions(text, "{") == ["flight_count"]


def test_a_prefix_is_the_file_its_whole_module_or_its_folder(tmp_path):
    folder = tmp_path / "nvml"
    folder.mkdir()
    (folder / "flight.c").touch()
    assert is_of("graph_memory_free", pathlib.Path("graph_memory.h"))
    assert is_of("graph_memory_free", pathlib.Path("graphmemory.h"))
    assert is_of("flight_drop", folder / "flight_lane.h")
    assert is_of("nvml_enter", folder / "device.h")
    assert not is_of("marks_try", folder / "mark.h")
    assert not is_of("lane_drop", folder / "flight_lane.h")
