"""How is the embedding of a new token initialised? One function per method, and what methods share; `METHODS` lists them."""
