"""``shardline completion`` and the completion of stream names."""
