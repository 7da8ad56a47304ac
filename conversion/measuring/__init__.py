"""How well does a model predict text, and do two models differ? Bits per byte, layer outputs, intervals and tests."""
