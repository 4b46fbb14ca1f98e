"""Command-line tools around the suite: trace, mutate, public_api. Standard library only, but for pytest in a child."""
