"""Being here, it lets tests in every folder import the helpers beside it (`tiny_tokenizer`, `tiny_corpus`)."""
