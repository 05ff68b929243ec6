"""`python -m contrailmq` is the `contrailmq` command."""

from contrailmq.cli import main

main()
