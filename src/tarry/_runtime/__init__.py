"""The only home of loops, clocks, threads and retries."""
