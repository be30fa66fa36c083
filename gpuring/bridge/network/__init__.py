"""What both sides use of the network.  Nothing here touches a ring.

The form of incoming messages is checked here, and nowhere else.  A message keeps its form as long
as `wire.VERSION` stays the same.

wire.py         the messages; wire_bytes.py: as bytes and back; wire_fields.py: fields in JSON
multipart.py    messages of several parts on a ZeroMQ socket
keys.py         key files, and encryption with them
addresses.py    names of hosts
"""
