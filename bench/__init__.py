"""Measurements of the library: throughput beside other loaders, what an image costs, memory over time."""
