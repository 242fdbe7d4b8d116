"""How kiln is proved, and how a user's tests compare: `assert_close`. Nothing in kiln imports it.

Comparisons, layouts, gradient checks and random programs.
"""

from kiln.testing.assertions import assert_close as assert_close
