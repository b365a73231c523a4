"""Makes ``python -m shardline`` the same as the command ``shardline``."""

from shardline.cli.main import main

main()
