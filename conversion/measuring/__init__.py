"""What does a model make of a text, and do two models differ? Bits per byte, layers' outputs, intervals and tests."""
