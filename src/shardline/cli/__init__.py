"""``shardline`` on the command line: one file per command (extra ``cli``)."""
