"""How is an encoder fine-tuned and asked? Its head and loop, the pieces of its words, a state to go on from."""
