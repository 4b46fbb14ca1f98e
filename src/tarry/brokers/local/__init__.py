"""The embedded log: a pump (admission, parked requests, offsets) over a store, in the caller's loop or in a host thread."""
