"""Lines for the logger "kiln.compile"."""


def log(warning: int, text: str) -> None:
    """A line in the log of `kiln.compile`."""
    import logging  # 10 ms, and seldom needed

    logging.getLogger("kiln.compile").log(logging.WARNING if warning else logging.INFO, "%s", text)
