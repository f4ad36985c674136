"""NEXMark: an auction's stream of persons, auctions and bids, to try things out on."""
