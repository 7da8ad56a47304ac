"""What a training run needs and how long it takes: parameters, memory, operations, communication, step time, energy; without torch."""
