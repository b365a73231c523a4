"""The web console of ``shardline console``. It requires the ``console`` extra."""
