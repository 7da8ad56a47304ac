"""What do answers and vectors amount to? F1, intervals, learned scores, sentence vectors, likeness of embeddings."""
