"""NEXMark: a stream of persons, auctions and bids, to try out pipelines."""
