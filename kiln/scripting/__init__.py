"""Scripts: functions and modules whose branches and loops on values are a program; see README.md."""
