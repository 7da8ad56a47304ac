"""How is work shared among processes and machines? Shard by shard, and one command on several machines."""
