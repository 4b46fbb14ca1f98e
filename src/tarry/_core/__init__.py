"""Pure machines: no clock, no I/O, no async; `now` comes in, decisions go out."""
