"""Write the generated parts of `docs/api.md`, and leave the rest as it is."""

from __future__ import annotations

from pathlib import Path

from gateway.reference.page import PAGE, rewritten


def main() -> None:
    """Rewrite the page in the current folder's `docs`."""
    page = Path(PAGE)
    page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
