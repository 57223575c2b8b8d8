"""The result store: points that are whole or not there, read and written."""
