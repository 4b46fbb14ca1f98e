"""Pure codecs: bytes in, values out. No sockets, no files, no clock."""
