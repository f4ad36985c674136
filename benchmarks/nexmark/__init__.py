"""NEXMark: an auction house as a stream, and queries over it that a batch database can check."""
