"""Messages that leave on several queue pairs."""
