"""Reading llama.cpp's GGUF: the file, what its names mean in Hugging Face's words, and the tokenizer that is in it."""
