"""NICs: what a message costs the ranks that send and receive it."""
