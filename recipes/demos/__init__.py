"""What the demos share: running the README's commands one after the other, and the real model that one of them starts from."""
