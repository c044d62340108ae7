"""Write the generated reference pages into docs/reference: `make reference`."""

from pathlib import Path

from generator import pages

ROOT = Path(__file__).parents[2]

for name, text in pages.reference(ROOT).items():
    file = ROOT / "docs" / name
    file.parent.mkdir(exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
        print(f"docs/{name}")
