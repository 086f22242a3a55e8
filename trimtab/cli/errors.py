"""Errors that end the program with a message for people."""


class UserError(Exception):
    """Something that the user can mend; the message says what and how."""


class PartFailedError(Exception):
    """A part of the system did not do its work; the message says which, and what it said."""
