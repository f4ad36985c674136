"""The race for everyone: NEXMark queries in five engines, checked and measured from outside."""
