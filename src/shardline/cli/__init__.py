"""The ``shardline`` command-line interface, with one folder per command. It requires the ``cli`` extra."""
