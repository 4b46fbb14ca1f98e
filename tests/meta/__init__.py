"""Tests of the project itself: layers, bans, public names, changelog, package, tools. None runs tarry itself."""
