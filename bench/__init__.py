"""The benchmarks of ringloop against its peers: `python bench/run.py --help`."""
