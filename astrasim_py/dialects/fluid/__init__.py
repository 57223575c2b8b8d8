"""The network model fluid: links are shared at max-min fair rates."""
