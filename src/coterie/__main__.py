"""The `coterie` command, and `python -m coterie`: signals are heard before anything else is imported."""

from __future__ import annotations

from typing import NoReturn

from coterie.cli.stopping import until_the_end


def main() -> NoReturn:
    """The entry point."""
    until_the_end(_command)


def _command() -> None:
    from coterie.cli.main import main

    main()


if __name__ == "__main__":
    main()
