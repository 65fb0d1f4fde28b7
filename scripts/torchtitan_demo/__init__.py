"""Parts of `torchtitan_demo.py` and of the tests: the real Trainer on a CPU."""
