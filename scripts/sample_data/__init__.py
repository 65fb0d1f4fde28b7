"""Parts of `make_sample_data.py`: pictures, texts, tokenizer, and the files that hold them."""
