"""What does ``python -m shardline`` do? The same as the command ``shardline``."""

from shardline.cli.main import main

main()
