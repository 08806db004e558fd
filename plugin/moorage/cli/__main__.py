"""``python -m moorage.cli``: the command line of this very interpreter."""

from moorage.cli import main

main()
