"""The embedded log: a pump over a store, in the caller's loop or in a host thread."""
