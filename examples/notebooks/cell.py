"""Run a cell in a user's notebook and print its output: `python3 cell.py PORT USER CODE`."""

import sys
import urllib.request

port, user, code = sys.argv[1:]
request = urllib.request.Request(f"http://127.0.0.1:{port}/{user}", code.encode())
with urllib.request.urlopen(request) as answer:
    for line in answer.read().decode().splitlines():
        print(f"{user}: {line}")
