"""``shardline`` on the command line: one folder per command (extra ``cli``)."""
