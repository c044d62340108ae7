"""Run one stage in this process: ``python -m kit.onestage NAME``."""

import importlib
import sys

from kit import report


def main():
    importlib.import_module(f"kit.stages.{sys.argv[1]}").run(report.from_environment())


if __name__ == "__main__":
    main()
