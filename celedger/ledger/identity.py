"""What marks a file as a ledger, and which one. Imports nothing, so that all of this room can."""

VERSION = 3  # PRAGMA user_version of today's schema: how many migrations schema.py holds
APPLICATION_ID = 0x63656C65  # "cele"
