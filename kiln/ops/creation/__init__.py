"""Arrays from nothing, from Python and from other libraries."""
