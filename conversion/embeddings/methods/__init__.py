"""How does a new token get its row? One function per method, and what methods are made of; `METHODS` lists them."""
