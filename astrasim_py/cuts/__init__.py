"""Lower bounds of collectives by cuts of a topology, and what proves them."""
