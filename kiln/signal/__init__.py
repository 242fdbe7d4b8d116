"""Signals: windows."""

from kiln.signal import windows as windows
