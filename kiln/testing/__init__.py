"""How kiln is proved, and how a user's tests compare: `assert_close`, `make_tensor`. Nothing in kiln imports it.

Comparisons, layouts, gradient checks and random programs.
"""

from kiln.testing.assertions import assert_close as assert_close
from kiln.testing.creation import make_tensor as make_tensor
