"""The page of `celedger report`: series are read, states derived from them, cards, charts and
cards made of both, and all of it written to one HTML file that needs no network."""
