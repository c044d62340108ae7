"""Find words that this project does not use, and say what to write instead.

A process, a pod, a thread, a file is "it" or its name; only people are "who". The terms of CUDA,
Kubernetes and Linux come before our own (CONTRIBUTING.md, "Words"). Every tracked text file is
read: code, comments, identifiers, messages and documentation alike. Exits 1 if anything is found.

    python .ci/words.py [PATH ...]     only these files and folders
    python .ci/words.py --count        how many findings each folder has
"""

import collections
import pathlib
import re
import subprocess
import sys

# What is banned, and what to write instead. An identifier's parts are words, too: ``is_told``.
BANNED = {
    "who": "the name of the process, pod or object, or 'that' (people may be 'who')",
    "whom": "the name of the process, pod or object",
    "whoever": "'a process that', 'a caller that', 'any pod that'",
    "whomever": "'any process', 'any pod'",
    "nobody": "'no process', 'no pod', 'nothing'",
    "somebody": "'another process', 'a caller'",
    "anybody": "'any process', 'any user'",
    "everybody": "'every process', 'all pods'",
    "anew": "'again', or 're-read', 're-created', 'restarted'",
    "told": "who does what: 'the agent reports', 'the shim receives', 'is notified', 'reported'",
    "hush": "'quiesce request'",
    "door": "'API', 'server', 'endpoint'",
    "doors": "'APIs', 'servers', 'endpoints'",
    "desk": "'routes', 'server'",
    "book": "'cache', 'ledger', 'list'",
    "books": "'caches', 'ledgers', 'lists'",
    "kin": "'related processes', 'processes of the slots'",
    "sick": "'unhealthy'",
    "teller": "'recorder', 'reporter'",
    "promise": "'reservation' (of a run), 'allocation' (of a container), 'guarantee' (of docs)",
    "promises": "'reservations', 'allocations', 'guarantees'",
    "promised": "'reserved', 'allocated', 'guaranteed'",
    "judge": "'evaluate', 'check', 'compare', 'validate'",
    "judges": "'evaluates', 'checks'",
    "judged": "'evaluated', 'checked'",
    "judging": "'evaluating', 'checking'",
    "wish": "'request', 'selection', 'option', 'desired state'",
    "wishes": "'requests', 'options', 'demand'",
    "wished": "'requested', 'desired'",
    "look": "'poll', 'read', 'check', 'sample'",
    "looks": "'polls', 'samples', 'tries'",
    "looked": "'polled', 'read', 'searched'",
    "looking": "'polling', 'reading'",
}
# After these, "who" is right: users, admins and authors are people.
PEOPLE = "user users admin admins administrator administrators author authors people person those"
PEOPLE += " reader readers operator operators developer developers engineer engineers researcher"
PEOPLE += " researchers team teams anyone someone everyone one maintainer maintainers customer"

_WORD = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(BANNED)})(?![a-z])", re.IGNORECASE)
_PERSON = re.compile(rf"\b(?:{'|'.join(PEOPLE.split())}),?\s+$", re.IGNORECASE)
_JAVASCRIPT = re.compile(r"\bnew Promise$")
# "Look up a name", "looks for a file" and "look at the log" are plain English, also across lines.
_LOOK_UP = re.compile(
    r"\Alook(?:s|ed|ing)?(?:[ _-](?:ups?|at|for|like|alike|after|back|valid|held|free|"
    r"better|them|it|the same)(?![a-z])|$)",
    re.IGNORECASE,
)
_UNIX_USER = re.compile(r"(?:\bUser |\buser |\")nobody$")  # whose name that is
# Not ours to word: measured records, what others wrote, this list and its test.
_LEFT = ("benchmarks/results/", ".ci/words.py", "tests/test_words.py", "LICENSE")
_TEXT = {".c", ".cfg", ".cmake", ".cu", ".def", ".h", ".html", ".in", ".js", ".css", ".json"}
_TEXT |= {".map", ".md", ".proto", ".ptx", ".py", ".pyx", ".pxd", ".sh", ".svg", ".toml", ".tpl"}
_TEXT |= {".txt", ".yaml", ".yml", ""}


def tracked(paths: list[str]) -> list[pathlib.Path]:
    """Return the text files below *paths* that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    named = sorted({name for name in listed if name and not name.startswith(_LEFT)})
    files = (pathlib.Path(name) for name in named)
    return [file for file in files if file.suffix in _TEXT and file.is_file()]


def findings(text: str) -> list[tuple[int, str, str]]:
    """Return each banned word in *text*: its line number, from 1, the word, and the line."""
    found = []
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        for match in _WORD.finditer(line):
            word = match.group().lower()
            # A sentence goes on across a line's end and its comment sign.
            ahead = line[: match.start()].lstrip(" \t#*/") or before.rstrip() + " "
            if word == "who" and _PERSON.search(ahead):
                continue
            if word == "nobody" and _UNIX_USER.search(line, 0, match.end()):
                continue
            if word == "promise" and _JAVASCRIPT.search(line, 0, match.end()):
                continue
            if word.startswith("look") and _LOOK_UP.search(line[match.start() :]):
                continue
            found.append((number, word, line.strip()))
        before = line
    return found


def main(arguments: list[str]) -> int:
    """Print the findings, or how many there are; return the exit status."""
    count = "--count" in arguments
    paths = [argument for argument in arguments if argument != "--count"]
    folders: collections.Counter[str] = collections.Counter()
    for file in tracked(paths):
        for number, word, line in findings(file.read_text(encoding="utf-8", errors="replace")):
            folders["/".join(file.parts[:2])] += 1
            if not count:
                print(f"{file}:{number}: '{word}': write {BANNED[word]}\n    {line}")
    if count:
        for folder, times in folders.most_common():
            print(f"{times:6} {folder}")
        print(f"{folders.total():6} in all")
    return 1 if folders.total() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
