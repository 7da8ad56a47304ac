"""How is an encoder fine-tuned and asked? Its head and loop, the subwords of its words, a state to resume from."""
