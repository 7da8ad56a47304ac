"""How is a model asked? Tasks, prompts and texts on transformers or vLLM, answers that outlive the process, folders of results."""
