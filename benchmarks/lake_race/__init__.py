"""Tables of a lake against files: rates of three engines, and a commit after 10,000 versions."""
