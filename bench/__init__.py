"""Throughput and latency of tarry, against other clients in the same run: `python -m bench --help`, bench/README.md."""
