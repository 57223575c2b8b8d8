"""The compiled engine: a Plan as flat arrays, and a kernel over them."""
