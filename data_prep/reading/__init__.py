"""Documents from files and datasets, corpus tables, and work shard by shard."""
