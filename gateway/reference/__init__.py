"""The parts of `docs/api.md` that are written from the code: `python -m gateway.reference` writes them anew."""
